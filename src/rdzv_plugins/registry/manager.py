"""The plug-ins of this process: one typed method per hook, so that no caller touches pluggy."""

from __future__ import annotations

import dataclasses
import logging
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from rdzv_plugins.errors import BrokenPlugin, PluginError, RdzvError, is_signal
from rdzv_plugins.installed import normalise
from rdzv_plugins.interfaces import Backend, Node, NodeCheck, Outcome, RendezvousInfo, Request
from rdzv_plugins.registry.catalog import Catalog
from rdzv_plugins.registry.discovery import PluginRecord, disabled_by_environment, discover, new_manager, validate

logger = logging.getLogger(__name__)


class PluginHost:
    """All installed plug-ins, loaded once. Not thread-safe; use it from the agent's main thread."""

    def __init__(self, records: list[PluginRecord]) -> None:
        self.records = records
        self._manager = new_manager()
        for record in records:
            if record.plugin is None:
                continue
            first = next((r for r in records if r.plugin is record.plugin), record)
            if first is not record:
                record.fail(f"loads the same module as {first.label}")
                continue
            self._manager.register(record.plugin, name=record.id)
        self.catalog = Catalog(records)

    @classmethod
    def load(cls, *, disabled: Collection[str] = (), strict: bool = False) -> PluginHost:
        """Discover and check every plug-in, except those in ``disabled`` and ``RDZV_DISABLE_PLUGINS``.

        ``strict`` raises ``BrokenPlugin`` if any of them has failed; otherwise failures stay in ``records``.
        """
        off = frozenset(disabled) | disabled_by_environment()
        records = discover(off)
        for record in records:
            if record.plugin is not None:
                validate(record)
        _warn_unknown(off, records)
        host = cls(records)
        failed = [f"{record.label} {record.error}" for record in host.failed] + host.catalog.conflicts()
        if strict and failed:
            raise BrokenPlugin(
                "--rdzv-strict: " + "; ".join(failed),
                remedy="Fix or uninstall them, or disable them with --rdzv-no-plugin NAME.",
            )
        return host

    @property
    def failed(self) -> list[PluginRecord]:
        """The plug-ins that cannot be used."""
        return [record for record in self.records if record.error]

    def report_problems(self, selected: str = "") -> None:
        """Log, once and in one line each, what is wrong with plug-ins that a launch of ``selected`` does not need."""
        for record in self.records:
            if record.error and normalise(record.name) == normalise(selected):
                continue  # the launch ends with that
            off = f"To hide this: RDZV_DISABLE_PLUGINS={record.name}."
            if record.error:
                error = record.error if record.error.endswith((".", "?")) else f"{record.error}."
                logger.warning("ignoring %s: it %s %s", record.label, error, off)
            for note in record.notes:
                logger.warning("%s %s. %s", record.label, note, off)
        for conflict in self.catalog.conflicts():
            logger.warning("%s", conflict)

    def resolve_request(self, request: Request, backend: Backend | None = None) -> Request:
        """Let plug-ins fill in fields that the user did not give; each sees what the previous ones have filled in.

        ``backend`` is looked up by its name if it is None. Raises ``BrokenPlugin`` if a plug-in answers with a field
        that ``Request`` does not have.
        """
        for record in self._in_order("rdzv_resolve_request"):
            asked = backend or self.catalog.known(request.backend)
            for answer in self._ask(record, "rdzv_resolve_request", request=request, backend=asked):
                _check_fields(record, answer)
                new = {name: value for name, value in answer.items() if name not in request.given}
                if new:
                    logger.info("%s filled in %s", record.label, ", ".join(f"{k}={v}" for k, v in new.items()))
                    request = dataclasses.replace(request, **new, given=request.given | set(new))
        return request

    def before_join(self, request: Request) -> None:
        """Run every health check. Raises ``JoinVetoed`` if one refuses."""
        self._answers("rdzv_before_join", request=request)

    def preflight(self, request: Request) -> list[NodeCheck]:
        """What plug-ins have found on this node. Raises ``BrokenPlugin`` for any other result."""
        answers = self._answers("rdzv_preflight", read=_checks_of, request=request)
        return [check for _, checks in answers for check in checks]

    def after_join(self, request: Request, info: RendezvousInfo) -> None:
        """Tell plug-ins that a round is complete."""
        self._answers("rdzv_after_join", request=request, info=info)

    def assign_ranks(self, request: Request, nodes: Sequence[Node]) -> Sequence[str] | None:
        """The order of ranks from the first plug-in with an opinion. Raises ``BrokenPlugin`` for unknown ids."""
        for record, answer in self._answers("rdzv_assign_ranks", request=request, nodes=nodes):
            known = {node.node_id for node in nodes}
            if isinstance(answer, str) or not isinstance(answer, Sequence) or not known.issuperset(answer):
                raise BrokenPlugin(
                    f"{record.label} did not return a list of ids of these nodes from rdzv_assign_ranks",
                    remedy="The hook must return the node_id of each node, in order, or None.",
                )
            return answer
        return None

    def worker_env(self, request: Request, env: Mapping[str, str]) -> dict[str, str]:
        """Variables that plug-ins add to one worker's environment; the first plug-in to set one wins."""
        extra: dict[str, str] = {}
        for record, answer in self._answers("rdzv_worker_env", request=request, env=env):
            _check_mapping(record, "rdzv_worker_env", answer)
            for name, value in answer.items():
                extra.setdefault(name, str(value))
        return extra

    def shutdown(self, request: Request, outcome: Outcome) -> None:
        """Tell plug-ins how it ended. If one fails here, that is logged and the others are still told."""
        self._answers("rdzv_shutdown", swallow=True, request=request, outcome=outcome)

    def _answers(self, hook: str, **arguments: Any) -> list[tuple[PluginRecord, Any]]:
        """The answers of all plug-ins to a hook, in order."""
        return [(each, answer) for each in self._in_order(hook) for answer in self._ask(each, hook, **arguments)]

    def _in_order(self, hook: str) -> list[PluginRecord]:
        """The usable plug-ins; those marked ``tryfirst`` or ``trylast`` come first or last, as in pluggy."""
        marked = {each.plugin_name: each for each in getattr(self._manager.hook, hook).get_hookimpls()}
        usable = [record for record in self.records if record.plugin is not None]
        return sorted(usable, key=lambda r: marked[r.id].trylast - marked[r.id].tryfirst if r.id in marked else 0)

    def _ask(
        self,
        record: PluginRecord,
        hook: str,
        *,
        swallow: bool = False,
        read: Callable[[PluginRecord, Any], Any] = lambda _, answer: answer,
        **arguments: Any,
    ) -> list[Any]:
        """Call a hook of one plug-in, so that an error can be attributed to it. Returns one answer at most.

        Our own errors (``RdzvError``) pass through; anything else becomes ``PluginError`` with the plug-in's name: also
        where ``read`` goes through an answer, which may be a generator of the plug-in.
        """
        others = [r.plugin for r in self.records if r.plugin is not None and r is not record]
        call: Callable[..., list[Any]] = self._manager.subset_hook_caller(hook, others)
        try:
            return [read(record, answer) for answer in call(**arguments)]
        except RdzvError:
            if not swallow:
                raise
            logger.warning("%s failed in %s", record.label, hook, exc_info=True)
        except Exception as error:
            if is_signal(error):
                raise
            if not swallow:
                raise PluginError(
                    f"{record.label} raised {type(error).__name__} in {hook}: {error}",
                    remedy=f"Disable it with --rdzv-no-plugin {record.name}, or fix it.",
                ) from error
            logger.warning("%s failed in %s: %s", record.label, hook, error)
        return []


def _check_fields(record: PluginRecord, answer: object) -> None:
    """Reject fields that no ``Request`` can be made with."""
    _check_mapping(record, "rdzv_resolve_request", answer)
    assert isinstance(answer, Mapping)
    wrong = set(answer) - ({f.name for f in dataclasses.fields(Request)} - {"given", "options"})
    if wrong:
        raise BrokenPlugin(f"{record.label} filled in unknown request fields: {', '.join(sorted(wrong))}")
    for name, value in answer.items():
        if not isinstance(value, _field_type(name)):
            raise BrokenPlugin(f"{record.label} filled in {name}={value!r}, a {type(value).__name__}")


def _check_mapping(record: PluginRecord, hook: str, answer: object) -> None:
    if not isinstance(answer, Mapping):
        raise BrokenPlugin(
            f"{record.label} returned {type(answer).__name__} from {hook}",
            remedy="The hook must return a mapping, or None.",
        )


def _checks_of(record: PluginRecord, answer: object) -> list[NodeCheck]:
    several = isinstance(answer, Iterable) and not isinstance(answer, str | bytes | Mapping)
    found: Iterable[object] = cast(Iterable[object], answer) if several else (answer,)
    return [_checked(record, each) for each in found]


def _checked(record: PluginRecord, check: object) -> NodeCheck:
    """The check, if it is one. Raises ``BrokenPlugin``."""
    remedy = "The hook must return a rdzv_plugins.NodeCheck, several of them, or None."
    if not isinstance(check, NodeCheck):
        raise BrokenPlugin(f"{record.label} returned {type(check).__name__} from rdzv_preflight", remedy=remedy)
    texts = all(isinstance(each, str) for each in (check.name, check.text, check.unit))
    number = check.value is None or (isinstance(check.value, int | float) and 0 <= check.value < math.inf)
    if not texts or not check.name or not number or check.verdict not in ("ok", "warning", "broken"):
        raise BrokenPlugin(f"{record.label} returned {check!r} from rdzv_preflight", remedy=remedy)
    return check


def _field_type(name: str) -> Any:
    """The type of a field of ``Request``, as ``isinstance`` accepts it."""
    hint = typing.get_type_hints(Request)[name]
    origin = typing.get_origin(hint)
    return hint if origin in (None, types.UnionType) else origin


def _warn_unknown(disabled: Collection[str], records: list[PluginRecord]) -> None:
    known = {normalise(name) for record in records for name in (record.name, record.distribution)}
    for name in disabled:
        if normalise(name) not in known:
            logger.warning("cannot disable plug-in %r: nothing of that name is installed", name)
