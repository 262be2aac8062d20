"""Maps names and aliases to backends, and every name that leads nowhere to the reason."""

from __future__ import annotations

from msgspec import Struct

from rdzv_plugins.errors import BrokenPlugin, MissingDependency, NameConflict, NotProvided, UnknownBackend
from rdzv_plugins.installed import normalise
from rdzv_plugins.interfaces import Backend
from rdzv_plugins.options import did_you_mean
from rdzv_plugins.registry.discovery import PluginRecord, install_hint

DROPPED = {
    "etcd-v2": ("etcd 3.6 removed the v2 API", "Use --rdzv-backend=etcd (v3), with the same endpoint."),
}
"""Names that torchrun users know and that will not be provided: why not, and what to use instead."""


class Entry(Struct, frozen=True):
    """A backend and the plug-in that provides it."""

    backend: Backend
    record: PluginRecord

    def check(self) -> None:
        """Raise what keeps this installation from using the backend: one of its imports, or what its check says."""
        for module in self.backend.imports:
            if not _is_installed(module):
                raise self.lacks(module)
        if self.backend.check is not None:
            self.backend.check()

    def lacks(self, module: str) -> MissingDependency:
        """Make the error for a module that the backend imports and that is not installed."""
        install = f"Install it: {self.backend.install}" if self.backend.install else install_hint(module, None)
        return MissingDependency(
            f"backend {self.backend.name!r} needs module {module!r}, which is not installed", remedy=install
        )


class Catalog:
    """Read-only view of the usable backends."""

    def __init__(self, records: list[PluginRecord]) -> None:
        self._records = records
        self._claims: dict[str, list[Entry]] = {}
        for record in records:
            for backend in record.backends:
                for name in dict.fromkeys(map(normalise, (backend.name, *backend.aliases))):
                    self._claims.setdefault(name, []).append(Entry(backend, record))

    def entries(self) -> list[Entry]:
        """Every backend, in the order of the plug-ins."""
        return [Entry(backend, record) for record in self._records for backend in record.backends]

    def conflicts(self) -> list[str]:
        """One line for every name that two plug-ins claim."""
        return [_conflict(name, claims) for name, claims in sorted(self._claims.items()) if len(claims) > 1]

    def find(self, name: str) -> Entry:
        """The backend called ``name``, or known by that alias (case, ``-`` and ``_`` do not matter).

        Raises ``NameConflict``, ``BrokenPlugin``, ``MissingDependency``, ``NotProvided`` or ``UnknownBackend``.
        """
        key = normalise(name)
        claims = self._claims.get(key, [])
        if len(claims) > 1:
            raise NameConflict(
                _conflict(key, claims),
                remedy="Uninstall one, or disable one with --rdzv-no-plugin NAME-OF-ITS-DISTRIBUTION.",
            )
        if claims:
            return claims[0]
        for record in self._records:
            if normalise(record.name) != key:
                continue
            if record.error:
                missing = isinstance(record.cause, ModuleNotFoundError) and record.remedy
                kind = MissingDependency if missing else BrokenPlugin
                raise kind(
                    f"backend {name!r} cannot be used: {record.label} {record.error}", remedy=record.remedy
                ) from record.cause
            if record.disabled:
                raise UnknownBackend(
                    f"backend {name!r} is disabled: {record.label}",
                    remedy="Remove it from RDZV_DISABLE_PLUGINS and --rdzv-no-plugin.",
                )
        names = sorted(self._claims)
        if key in DROPPED:
            why, instead = DROPPED[key]
            raise NotProvided(f"backend {name!r} is not provided: {why}", remedy=instead)
        raise UnknownBackend(
            f"unknown rendezvous backend {name!r}{did_you_mean(key, names)}",
            remedy=f"Available: {', '.join(names) or 'none'}. See: rdzv backends",
        )

    def meets_at(self, name: str) -> str:
        """``Backend.meets_at`` of the backend that ``find`` returns; empty if that raises an error."""
        backend = self.known(name)
        return backend.meets_at if backend is not None else ""

    def known(self, name: str) -> Backend | None:
        """The backend that ``find`` returns; None if that raises an error."""
        claims = self._claims.get(normalise(name), [])
        return claims[0].backend if len(claims) == 1 else None


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except ImportError:  # of what it lies in
        return False
    except ValueError:  # it was imported, and does not say from where
        return True


def _conflict(name: str, claims: list[Entry]) -> str:
    owners = " and ".join(f"{e.record.distribution} {e.record.version} ({e.record.value})" for e in claims)
    return f"backend name {name!r} is claimed by {owners}"
