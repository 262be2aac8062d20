"""What is compared: any installed backend by its name, even a third-party one, and torch's own beside them.

The conformance suite's harness of a backend (entry-point group ``rdzv_plugins.harnesses``) starts its service and knows
its endpoint; a backend without a harness is measured at the endpoint of a service that is already running.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.options import parse_conf, parse_options
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.create import NoOptions
from rdzv_plugins.testing.find import GROUP, find_harness
from rdzv_plugins.testing.harness import NOTHING, Harness, entry

TORCH_C10D, TORCH_STATIC = "torch-c10d", "torch-static"
REFERENCES = (TORCH_C10D, TORCH_STATIC)
"""torch's own rendezvous, as plain torchrun makes them, with which ours are compared."""
_IMPORTS_OF_TORCH = tuple(
    f"torch.distributed.elastic.rendezvous.{name}" for name in ("c10d_rendezvous_backend", "static_tcp_rendezvous")
)
_DISTRIBUTION = "rdzv-plugins"
_TIMES = frozenset(
    {"timeout", "join_timeout", "ttl", "outage_timeout", "keep_alive_interval", "keep_alive_max_attempt", "linger"}
    | {"last_call_timeout"}
)


@dataclasses.dataclass
class Candidate:
    """A rendezvous that is to be measured: of an installed backend, or torch's own."""

    name: str
    harness: Harness
    """The harness, not started yet; its ``conf`` is what the nodes get."""
    capabilities: Set[Capability]
    version: tuple[str, str] = ("", "")
    """Name and version of the distribution that contains it."""
    runs: bool = False
    """Its service was already running, where the user said."""
    free: Set[str] = frozenset()
    """The options that it has and the user has not set."""

    @property
    def backend(self) -> str:
        """What the launcher calls it."""
        return self.name.removeprefix("torch-") if self.reference else self.name

    @property
    def reference(self) -> bool:
        return self.name in REFERENCES

    @property
    def elastic(self) -> bool:
        return Capability.ELASTIC in self.capabilities

    @property
    def traits(self) -> Harness:
        """Knows the backend's properties wherever its service runs: if it is one of ours, its own harness."""
        return find_harness(self.name) if self.name in shipped() else self.harness


@functools.cache
def shipped() -> tuple[str, ...]:
    """The names of the backends that come with rdzv-plugins, which are those of its harnesses. Loads none of them."""
    ours = [each for each in entry_points(group=GROUP) if each.dist is not None and each.dist.name == _DISTRIBUTION]
    return tuple(each.name for each in ours)


def there(name: str) -> bool:
    """Whether what this backend's own harness needs is installed here; if not, stderr says why."""
    try:
        find_harness(name).require()
    except RdzvError as error:
        print(f"skipping {name}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def candidates(
    args: argparse.Namespace, wanted: Mapping[str, str] = NOTHING, *, own_times: bool = False
) -> list[Candidate]:
    """The backends that ``--backends`` names, or those that come with rdzv-plugins and can be started here.

    ``wanted``: options that the benchmark sets if a backend has them and the user has not set them. ``own_times``:
    time-outs are the backend's own defaults, whatever its harness sets to make tests quick. Raises what the host raises
    for a name, ``UsageError``, and ``OptionError`` for an option that a backend does not have.
    """
    endpoints = dict(args.rdzv_endpoint)
    confs = {name: parse_conf(text) for name, text in args.rdzv_conf}
    found: list[Candidate] = []
    names: set[str] = set()
    for name in args.backends or filter(there, shipped()):
        known = entry(name)
        if known.backend.name in names:
            continue  # named twice, perhaps by an alias
        given = _of(known, confs) or NOTHING
        endpoint = _of(known, endpoints)
        harness = find_harness(name, endpoint, given)
        options = known.backend.options or NoOptions
        has = {field.name for field in dataclasses.fields(options)}
        ours = {key: value for key, value in wanted.items() if key in has}
        theirs = {key: value for key, value in harness.conf.items() if not (own_times and key in _TIMES)}
        harness.conf = MappingProxyType({**theirs, **ours, **given})
        parse_options(options, harness.conf, f"backend {known.backend.name!r}")
        version = known.record.distribution, known.record.version
        capabilities, runs = known.backend.capabilities, endpoint is not None
        found.append(Candidate(known.backend.name, harness, capabilities, version, runs, has - given.keys()))
        names |= {known.backend.name, *known.backend.aliases}
    for flag, by_name in (("--rdzv-endpoint", endpoints), ("--rdzv-conf", confs)):
        if strangers := set(by_name) - names:
            raise UsageError(f"{flag}={min(strangers)}=...: it is not in --backends", remedy="Add it there.")
    return found


def references(names: Sequence[str]) -> list[Candidate]:
    """torch's own of these names: node 0 serves the endpoint, as with plain torchrun."""
    found = []
    for name in names:
        harness = Harness()
        harness.backend, harness.imports = name, _IMPORTS_OF_TORCH
        found.append(Candidate(name, harness, {Capability.NODE_RANK if name == TORCH_STATIC else Capability.ELASTIC}))
    return found


def start(found: list[Candidate], running: ExitStack) -> None:
    """Start what the backends need, until ``running`` is closed. Raises ``RdzvError``."""
    for candidate in found:
        what = f"backend {candidate.name!r}: its harness could not be started"
        with asking_harness(what, remedy="Start its service yourself, and give --rdzv-endpoint."):
            running.enter_context(candidate.harness)


@contextmanager
def asking_harness(what: str, remedy: str = "") -> Iterator[None]:
    """Make anything that a third-party harness may raise inside an ``RdzvError`` that begins with ``what``."""
    try:
        yield
    except RdzvError:
        raise
    except Exception as error:
        raise RdzvError(f"{what}: {type(error).__name__}: {error}", remedy=remedy) from error


def _of(known: Entry, by_name: Mapping[str, Any]) -> Any:
    names = (known.backend.name, *known.backend.aliases)
    return next((by_name[name] for name in names if name in by_name), None)
