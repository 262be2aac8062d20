"""What the conformance suite has to be told of a backend: how to start, address and clean it.

A plug-in's tests have one fixture, ``harness``, with an instance of a subclass of ``Harness``. Most backends set
``backend`` and ``conf`` and leave the rest; one that needs a service starts it in ``start``.
"""

from __future__ import annotations

import dataclasses
import os
import random
import socket
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from rdzv_plugins.interfaces import Request

H = TypeVar("H", bound="Harness")

_LOWEST, _HIGHEST = 20_000, 30_000
_MOST_SHARES = 8
"""So that each share has more ports than are remembered."""
_given: deque[int] = deque(maxlen=1000)

NOTHING: Mapping[str, str] = MappingProxyType({})


class Service(Protocol):
    """The processes of a service that the nodes only dial: the suite kills, freezes and restarts them."""

    @property
    def pids(self) -> tuple[int, ...]:
        """All its processes that run now."""
        ...

    @property
    def keeps_data(self) -> bool:
        """True if keys are still there after ``kill`` and ``start_again``."""
        ...

    def kill(self) -> None:
        """SIGKILL to all of them; returns when they have ended."""
        ...

    def start_again(self) -> None:
        """At the same address, after ``kill``; returns when it answers."""
        ...


class Harness:
    """One backend under test. A context manager: ``start`` at its beginning, ``close`` at its end.

    Used by one thread at a time, for any number of jobs, one after the other or at once. Class attributes may be
    set by subclasses, or on the instance before ``start``.
    """

    backend: str = ""
    """Its name, as after ``--rdzv-backend``."""
    kind: ClassVar[Literal["state", "coordination", "handler"]] = "state"
    """What its ``create`` returns: a ``RendezvousBackend``, a ``CoordinationBackend`` or a ``RendezvousHandler``."""
    conf: Mapping[str, str] = NOTHING
    """``--rdzv-conf`` of every job. Time-outs that tests wait for should be short: ``ttl=2``."""
    environment: Mapping[str, str] = NOTHING
    """Variables for the processes of nodes: a password, for example."""
    service: Service | None = None
    """What the nodes dial, once started; None where a node serves the endpoint, or nobody does (a file system)."""
    dialled: ClassVar[bool] = True
    """The endpoint is HOST:PORT of TCP: the suite may put a relay of its own in front of it, to cut and to slow it."""
    wrong_endpoints: tuple[str, ...] = ("a b",)
    """Values of ``--rdzv-endpoint`` that the backend refuses before it starts anything."""

    def start(self) -> None:
        """Start what outlives the jobs: servers. Called once."""

    def close(self) -> None:
        """Stop it, and delete what jobs have left behind. Called once, also when ``start`` has failed."""

    def endpoint(self, directory: Path) -> str:
        """``--rdzv-endpoint`` for a new job; called once for each. ``directory`` is empty, and of this job alone."""
        return f"127.0.0.1:{free_port()}"

    def nowhere(self, directory: Path) -> str | None:
        """An endpoint in the right form at which nobody is and no node can serve; None if there is no such thing."""
        return f"198.51.100.1:{free_port()}" if self.dialled else None  # TEST-NET-2 of RFC 5737: no machine has it

    def request(self, endpoint: str, **fields: Any) -> Request:
        """A request of one node, not prepared yet: ``conf`` is text, ``options`` None. ``fields`` replace the rest.

        A mapping given as ``conf`` comes on top of the harness's.
        """
        conf = {**self.conf, **fields.pop("conf", {})}
        request = Request(
            backend=self.backend,
            run_id="conformance",
            endpoint=endpoint,
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=1,
            conf=MappingProxyType(conf),
        )
        return dataclasses.replace(request, **fields)

    def __enter__(self: H) -> H:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_port() -> int:
    """A TCP port of loopback that nobody listens on, below those that the kernel hands out by itself.

    Any thread may call it. A process gets no port twice in a thousand calls, and the processes of one run of
    pytest-xdist get different ones: between this call and its use a port is nobody's.
    """
    chance = random.SystemRandom()  # a seed that somebody gives to all processes of a run would choose alike in all
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
    """Of the ports, what this process of pytest-xdist may take; all of them if there is no such thing."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if not 1 < count <= _MOST_SHARES:
        return _LOWEST, _HIGHEST
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    each = (_HIGHEST - _LOWEST) // count
    return _LOWEST + number * each, _LOWEST + (number + 1) * each
