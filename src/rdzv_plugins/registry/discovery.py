"""Loads the entry points of group ``rdzv_plugins`` one by one, so that a broken plug-in harms no other.

Each is checked against the contract before it may join the others.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Any

import pluggy
from msgspec import Struct, field

from rdzv_plugins import hookspecs
from rdzv_plugins.background_queue import adopt_logger
from rdzv_plugins.hookspecs import PROJECT, hookimpl
from rdzv_plugins.installed import Distribution, EntryPoint, entry_points, normalise
from rdzv_plugins.interfaces import Backend, Capability
from rdzv_plugins.options import describe_options, did_you_mean

ENTRY_POINT_GROUP = PROJECT
SLOW_IMPORT_S = 0.5
"""Seconds of import above which a plug-in is reported as slow."""


class PluginRecord(Struct):
    """One entry point: where it comes from, and what has become of it."""

    name: str
    """Name of the entry point."""
    value: str
    """The entry point's ``module`` or ``module:attribute``."""
    distribution: str
    version: str
    plugin: Any = None
    backends: tuple[Backend, ...] = ()
    error: str = ""
    """Why it is not used, in one line; empty if it is."""
    cause: BaseException | None = None
    remedy: str = ""
    disabled: bool = False
    import_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """Remarks on a plug-in that works: a slow import, an import of torch."""

    @property
    def id(self) -> str:
        """A name that is unique across all distributions."""
        return f"{self.distribution}:{self.name}"

    @property
    def label(self) -> str:
        """The name used for the plug-in in messages."""
        return f"plug-in {self.name!r} of {self.distribution} {self.version} (entry point {self.name} = {self.value})"

    def fail(self, error: str, *, cause: BaseException | None = None, remedy: str = "") -> None:
        """Mark the plug-in as unusable. Only the first reason is kept."""
        if not self.error:
            self.error, self.cause, self.remedy = " ".join(error.split()), cause, remedy
        self.plugin, self.backends = None, ()


def disabled_by_environment() -> frozenset[str]:
    """The names of the plug-ins that ``RDZV_DISABLE_PLUGINS`` switches off."""
    names = os.environ.get("RDZV_DISABLE_PLUGINS", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def discover(disabled: Collection[str] = ()) -> list[PluginRecord]:
    """Load every plug-in that is installed and not in ``disabled`` (names of entry points or distributions).

    Never raises because of what a plug-in does: a failure is noted in its record.
    """
    off = {normalise(name) for name in disabled}
    records: dict[tuple[str, str, str], PluginRecord] = {}
    for entry in entry_points(ENTRY_POINT_GROUP):
        record = PluginRecord(
            name=entry.name,
            value=entry.value,
            distribution=entry.distribution.name or "unknown distribution",  # an interrupted install has neither
            version=entry.distribution.version or "?",
        )
        # The same distribution found twice on sys.path is one plug-in, as it is for import.
        key = (normalise(record.distribution), entry.name, entry.value)
        if key in records:
            continue
        records[key] = record
        if {normalise(entry.name), normalise(record.distribution)} & off:
            record.disabled = True
        else:
            _load(entry, record)
    return sorted(records.values(), key=lambda r: (r.distribution != "rdzv-plugins", r.distribution, r.name))


def _load(entry: EntryPoint, record: PluginRecord) -> None:
    try:
        module = entry.module
    except ValueError as error:
        record.fail(f"has an invalid entry point: {error}", cause=error)
        return
    had_torch = "torch" in sys.modules
    held_up, start = _held_up(), time.perf_counter()
    try:
        record.plugin = entry.load()
        adopt_logger(module)
        if record.plugin is None:
            record.fail("has an entry point that is None")
    except ImportError as error:
        own = module.partition(".")[0]
        missing = (error.name or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and missing and missing != own:
            remedy = install_hint(missing, entry.distribution)
            record.fail(f"needs module {missing!r}, which is not installed", cause=error, remedy=remedy)
        else:
            gone = f"Reinstall or uninstall {record.distribution}." if error.name == module else ""
            record.fail(f"cannot be imported: {error}", cause=error, remedy=gone)
    except (Exception, SystemExit) as error:  # a plug-in may do anything at import: report it and go on
        record.fail(f"raised {type(error).__name__} at import: {error}", cause=error)
    # in this order: a wait between two of these readings makes it look shorter, never longer
    record.import_seconds = max(0.0, time.perf_counter() - start - (_held_up() - held_up))
    if record.import_seconds > SLOW_IMPORT_S:
        record.notes.append(f"took {record.import_seconds:.1f} s to import")
    if not had_torch and "torch" in sys.modules:
        record.notes.append("imports torch when it is loaded")


def _held_up() -> float:
    """Seconds that this thread has waited for a processor used by others, which is no plug-in's fault; 0 if unknown."""
    try:
        with open("/proc/thread-self/schedstat") as schedstat:
            return int(schedstat.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # another system, or a kernel that does not count this
        return 0.0


def install_hint(module: str, dist: Distribution | None) -> str:
    """The command that installs ``module``, through an extra of ``dist`` if one names it."""
    for requirement in dist.requires if dist else ():
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if name and normalise(name.group()) == normalise(module):
            target = f"'{dist.name}[{extra.group(1)}]'" if extra and dist else name.group()
            return f"Install it: pip install {target}"
    return f"Install it: pip install {module}"


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


def validate(record: PluginRecord) -> None:
    """Check a plug-in by itself: fill in ``record.backends``, or mark the record as failed and say why."""
    manager = new_manager()
    try:
        manager.register(record.plugin, name=record.id)
        _check_hook_names(manager, record)
        if not record.error:
            _collect_backends(manager, record)
    except pluggy.PluginValidationError as error:
        # pluggy's text is three lines, the last of which says what is wrong
        record.fail("has a wrong hook signature: " + str(error).strip().splitlines()[-1].strip(), cause=error)
    except (Exception, SystemExit) as error:  # reported, not propagated: it must not stop other backends
        record.fail(f"raised {type(error).__name__} in rdzv_register_backends: {error}", cause=error)


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
        record.fail(f"implements no hook{hint}", remedy="Mark hook functions with @rdzv_plugins.hookimpl.")


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
                    remedy="The hook must return a rdzv_plugins.Backend or several of them.",
                )
                return
            wrong = _wrong_field(item)
            if wrong:
                record.fail(f"registered a Backend whose {wrong}")
                return
            backends.append(item)
    record.backends = tuple(backends)


def _is_collection(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _wrong_field(backend: Backend) -> str:
    """The first field of the wrong type, in words; empty if there is none."""
    if not isinstance(backend.name, str) or not backend.name:
        return f"name is {backend.name!r}, not a string"
    checks = {
        "summary": (isinstance(backend.summary, str), "a string"),
        "create": (callable(backend.create), "a function"),
        "aliases": (_all_are(backend.aliases, str), "a tuple of strings"),
        "capabilities": (_all_are(backend.capabilities, Capability), "a set of rdzv_plugins.Capability"),
        "install": (isinstance(backend.install, str), "a string"),
        "imports": (_all_are(backend.imports, str), "a tuple of module names"),
        "meets_at": (backend.meets_at in ("", "node", "service"), "'', 'node' or 'service'"),
    }
    for name in ("validate", "check", "preflight", "recognise", "status", "health"):
        given = getattr(backend, name)
        checks[name] = (given is None or callable(given), "a function")
    for name, (good, wanted) in checks.items():
        if not good:
            return f"{name} is {getattr(backend, name)!r}, not {wanted}"
    try:
        describe_options(backend.options)
    except (TypeError, NameError) as error:
        return f"options {backend.options!r} are invalid: {error}"
    return ""


def _all_are(values: Any, kind: type) -> bool:
    return _is_collection(values) and all(isinstance(value, kind) for value in values)
