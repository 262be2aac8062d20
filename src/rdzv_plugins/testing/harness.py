"""What the conformance suite has to be told about a backend: how to start it, address it and clean up.

A plug-in's tests have one fixture, ``harness``, with an instance of a subclass of ``Harness``. Most backends set
``backend`` and ``conf`` and leave the rest; one that needs a service starts it in ``start``.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import socket
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.interfaces import RendezvousBackend, Request, TorchHandler
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.catalog import Entry

H = TypeVar("H", bound="Harness")
Kind: TypeAlias = Literal["state", "coordination", "handler"]

CONTRACTS: Mapping[Kind, type] = MappingProxyType(
    {"handler": TorchHandler, "coordination": CoordinationBackend, "state": RendezvousBackend}
)
"""The kinds of what ``create`` may return, told apart by their methods: in the order in which the launcher looks."""

_LOWEST, _HIGHEST = 20_000, 30_000
_MOST_SHARES = 8
"""The most shares of the ports, so that each has more ports than are remembered."""
_given: deque[int] = deque(maxlen=1000)

NOTHING: Mapping[str, str] = MappingProxyType({})


class Service(Protocol):
    """The processes of a service that the nodes only dial: the suite kills, freezes and restarts them."""

    @property
    def pids(self) -> tuple[int, ...]:
        """All processes of the service that run now."""
        ...

    @property
    def keeps_data(self) -> bool:
        """True if keys are still there after ``kill`` and ``start_again``."""
        ...

    def kill(self) -> None:
        """Kill all of them with SIGKILL; returns when they have ended."""
        ...

    def start_again(self) -> None:
        """Start the service at the same address, after ``kill``; returns when it answers."""
        ...


@dataclasses.dataclass(frozen=True)
class ServiceCounts:
    """A service's counters since it started, as its harness's ``probe`` reads them."""

    requests: Mapping[str, int]
    """Requests of clients, by name, without signs of life."""
    signs: int = 0
    """The number of signs of life."""
    syncs: int = 0
    """How often the service made sure that its writes are on disk."""
    sync_s: float = 0.0
    """How long these syncs took, in seconds."""
    cpu_s: float | None = None
    """Processor time spent on serving, if the service reports it; None: that of its processes counts."""


class Harness:
    """One backend under test. A context manager: ``start`` at its beginning, ``close`` at its end.

    Used by one thread at a time, for any number of jobs, one after the other or at once. Class attributes may be
    set by subclasses, or on the instance before ``start``.
    """

    backend: str = ""
    """The name of the backend, as given to ``--rdzv-backend``."""
    kind: ClassVar[Kind] = "state"
    """What the backend creates: a ``RendezvousBackend``, a ``CoordinationBackend`` or a ``RendezvousHandler``."""
    conf: Mapping[str, str] = NOTHING
    """``--rdzv-conf`` of every job. Time-outs that tests wait for should be short: ``ttl=2``."""
    environment: Mapping[str, str] = NOTHING
    """Variables for the processes of nodes: a password, for example."""
    service: Service | None = None
    """The service that the nodes dial, once started; None if a node serves the endpoint, or nobody does (a file)."""
    dialled: ClassVar[bool] = True
    """True if the endpoint is a TCP HOST:PORT: the suite may put a relay in front of it, to cut or slow it."""
    wrong_endpoints: tuple[str, ...] = ("a b",)
    """Values of ``--rdzv-endpoint`` that the backend refuses before it starts anything."""

    # for ``rdzv bench`` only: leaving these as they are costs nothing but precision

    native: ClassVar[bool] = False
    """True if the nodes meet at rdzv-plugins' native store, which ``rdzv serve`` may serve, apart from them."""
    probe: str = ""
    """``module:function`` that reads the service's counters: it gets an ``Endpoint``, returns a ``ServiceCounts``."""
    remark: str = ""
    """What a reader of figures should know about the service that it starts, in full lines."""
    imports: tuple[str, ...] = ()
    """Modules that ``create`` imports: once for all nodes of a process, before the clock starts."""

    def require(self) -> None:
        """Raise ``MissingDependency`` if something that ``start`` needs is not installed here. Starts nothing."""

    def afresh(self, directory: Path) -> Harness:
        """Return a harness for benchmarks, whose service is new for each job, with its data below ``directory``.

        Returns itself if a job does not see what earlier ones have left.
        """
        return self

    def start(self) -> None:
        """Start what outlives the jobs: servers. Called once."""

    def close(self) -> None:
        """Stop what ``start`` started, and delete what jobs have left behind. Called once, even if ``start`` failed."""

    def endpoint(self, directory: Path) -> str:
        """Return ``--rdzv-endpoint`` for a new job; called once for each. ``directory`` is empty, for this job only."""
        return f"127.0.0.1:{free_port()}"

    def endpoints(self, directory: Path, count: int) -> str:
        """Return ``count`` endpoints for a new job, where any node can serve; for a backend that takes several."""
        return ",".join(f"127.0.0.1:{free_port()}" for _ in range(count))

    def nowhere(self, directory: Path) -> str | None:
        """Return a well-formed endpoint where nobody is and no node can serve; None if there is no such thing."""
        return f"198.51.100.1:{free_port()}" if self.dialled else None  # TEST-NET-2 of RFC 5737: no machine has it

    def request(self, endpoint: str, **fields: Any) -> Request:
        """Make a request of one node, not yet prepared: ``conf`` is text, ``options`` None. ``fields`` replace others.

        A mapping given as ``conf`` comes on top of the harness's.
        """
        conf = MappingProxyType({**self.conf, **fields.pop("conf", {})})
        wanted: dict[str, Any] = {"backend": self.backend, "run_id": "conformance", "endpoint": endpoint, "conf": conf}
        wanted |= {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1}
        return Request(**{**wanted, **fields})

    def __enter__(self: H) -> H:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def free_port() -> int:
    """A TCP port of loopback that nobody listens on, below those that the kernel hands out by itself.

    Any thread may call it. A process gets no port twice in a thousand calls, and the processes of one run of
    pytest-xdist get different ones: between this call and its use a port is nobody's.
    """
    chance = random.SystemRandom()  # a seed that somebody gives to all processes of a run would make all choose alike
    low, high = _share()
    while True:
        port = chance.randrange(low, high)
        if port in _given:
            continue
        _given.append(port)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _share() -> tuple[int, int]:
    """The ports that this process may take: its share under pytest-xdist, otherwise all of them."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if not 1 < count <= _MOST_SHARES:
        return _LOWEST, _HIGHEST
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    each = (_HIGHEST - _LOWEST) // count
    return _LOWEST + number * each, _LOWEST + (number + 1) * each


@functools.cache
def entry(backend: str) -> Entry:
    """The entry of an installed backend. Raises ``UnknownBackend``, ``BrokenPlugin`` and the like."""
    return PluginHost.load().catalog.find(backend)


def takes(harness: Harness, option: str) -> bool:
    """Whether the backend takes that key of --rdzv-conf."""
    options = entry(harness.backend).backend.options
    return options is not None and option in {field.name for field in dataclasses.fields(options)}


def kind_of(created: Any) -> Kind | None:
    """The kind of what a backend has created; None if it is of no kind."""
    return next((kind for kind, contract in CONTRACTS.items() if isinstance(created, contract)), None)


def no_kind(created: Any) -> str:
    """The sentence for what is of no kind."""
    return (
        f"create() returned a {type(created).__name__}, but must return a RendezvousBackend, a "
        "CoordinationBackend or a RendezvousHandler"
    )
