"""Checks one plug-in against the contract before it may join the others."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import pluggy

from rdzv_plugins import hookspecs
from rdzv_plugins.hookspecs import PROJECT, hookimpl
from rdzv_plugins.host.discovery import PluginRecord
from rdzv_plugins.interfaces import Backend, Capability
from rdzv_plugins.options import describe_options, did_you_mean

HOOK_NAMES = tuple(name for name in dir(hookspecs) if name.startswith("rdzv_"))


_SPECS = ModuleType("rdzv_plugins.hookspecs", "The hooks, and nothing else that pluggy would have to look at.")
vars(_SPECS).update({name: getattr(hookspecs, name) for name in HOOK_NAMES})


_MARK = f"{PROJECT}_impl"
"""What pluggy's ``@hookimpl`` sets on a function."""


class _Manager(pluggy.PluginManager):
    """A manager that spends no time on what a module has imported: no function without ``@hookimpl`` is a hook."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if isinstance(plugin, ModuleType):
            found = vars(plugin).get(name, _unknown)
            if not (inspect.isroutine(found) and hasattr(found, _MARK)):
                return None
        return super().parse_hookimpl_opts(plugin, name)


@hookimpl
def _unknown() -> None:
    """Stands for what a module's ``__getattr__`` makes and pluggy would look at."""


def new_manager() -> pluggy.PluginManager:
    """An empty pluggy manager that knows our hooks."""
    manager = _Manager(PROJECT)
    manager.add_hookspecs(_SPECS)
    return manager


class Validator:
    """Checks plug-ins, each by itself: no other is registered meanwhile."""

    def __init__(self) -> None:
        self._manager = new_manager()

    def validate(self, record: PluginRecord) -> None:
        """Fill in ``record.backends``, or mark the record as failed and say why."""
        manager, plugin = self._manager, record.plugin
        try:
            manager.register(plugin, name=record.id)
            _check_hook_names(manager, record)
            if not record.error:
                _collect_backends(manager, record)
        except pluggy.PluginValidationError as error:
            # pluggy's text is three lines, the last of which says what is wrong
            record.fail("has a wrong hook signature: " + str(error).strip().splitlines()[-1].strip(), cause=error)
        except (Exception, SystemExit) as error:  # reported, not propagated: it must not stop other backends
            record.fail(f"raised {type(error).__name__} in rdzv_register_backends: {error}", cause=error)
        if record.error:  # it may have been registered half-way
            self._manager = new_manager()
        else:
            manager.unregister(plugin)


def _check_hook_names(manager: pluggy.PluginManager, record: PluginRecord) -> None:
    callers = manager.get_hookcallers(record.plugin) or []
    for caller in callers:
        if not caller.has_spec():
            record.fail(
                f"implements {caller.name!r}, which is not a hook{did_you_mean(caller.name, HOOK_NAMES)}",
                remedy=f"The hooks are: {', '.join(HOOK_NAMES)}.",
            )
            return
    if not callers:
        unmarked = [name for name in HOOK_NAMES if inspect.isroutine(getattr(record.plugin, name, None))]
        hint = f": {unmarked[0]} lacks the @hookimpl mark" if unmarked else ""
        record.fail(f"implements no hook{hint}", remedy="Mark its hook functions with @rdzv_plugins.hookimpl.")


def _collect_backends(manager: pluggy.PluginManager, record: PluginRecord) -> None:
    backends: list[Backend] = []
    hook = manager.hook.rdzv_register_backends
    results = hook()
    if hook.get_hookimpls() and not results:  # pluggy leaves out None
        results = [None]
    for result in results:
        items: list[Any] = list(result) if _is_collection(result) else [result]
        for item in items:
            if not isinstance(item, Backend):
                record.fail(
                    f"returned {'None' if item is None else type(item).__name__} from rdzv_register_backends",
                    remedy="The hook returns a rdzv_plugins.Backend or a list of them.",
                )
                return
            wrong = _wrong_field(item)
            if wrong:
                record.fail(f"made a Backend whose {wrong}")
                return
            backends.append(item)
    record.backends = tuple(backends)


def _is_collection(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _wrong_field(backend: Backend) -> str:
    """The first field of the wrong type, in words; empty if there is none."""
    if not isinstance(backend.name, str) or not backend.name:
        return f"name is {backend.name!r}, not text"
    checks = {
        "summary": (isinstance(backend.summary, str), "text"),
        "create": (callable(backend.create), "a function"),
        "aliases": (_all_are(backend.aliases, str), "a tuple of texts"),
        "capabilities": (_all_are(backend.capabilities, Capability), "a set of rdzv_plugins.Capability"),
        "validate": (backend.validate is None or callable(backend.validate), "a function"),
        "install": (isinstance(backend.install, str), "text"),
        "imports": (_all_are(backend.imports, str), "a tuple of names of modules"),
        "check": (backend.check is None or callable(backend.check), "a function"),
        "preflight": (backend.preflight is None or callable(backend.preflight), "a function"),
        "recognise": (backend.recognise is None or callable(backend.recognise), "a function"),
        "status": (backend.status is None or callable(backend.status), "a function"),
        "health": (backend.health is None or callable(backend.health), "a function"),
        "meets_at": (backend.meets_at in ("", "node", "service"), "'', 'node' or 'service'"),
    }
    for field, (good, wanted) in checks.items():
        if not good:
            return f"{field} is {getattr(backend, field)!r}, not {wanted}"
    try:
        describe_options(backend.options)
    except (TypeError, NameError) as error:
        return f"options {backend.options!r} cannot be read: {error}"
    return ""


def _all_are(values: Any, kind: type) -> bool:
    return _is_collection(values) and all(isinstance(value, kind) for value in values)
