"""One job of the backend under test, with nodes in this process or in others: what its backend is tested with."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rdzv_plugins.coordination import CoordinationBackend, Session
from rdzv_plugins.interfaces import Capability, RendezvousBackend, Request, TorchHandler
from rdzv_plugins.registry.create import prepare
from rdzv_plugins.testing.forked import Forked
from rdzv_plugins.testing.harness import CONTRACTS, Harness, Kind, entry, takes
from rdzv_plugins.testing.parts import LONG, PATIENCE, Losses, bounded, opened
from rdzv_plugins.testing.suite import Test, Theme, gap_if

_TTL_S = 2.0
_BIG = 32 * 1024


class ContractJob:
    """A job at an endpoint of its own. For use by one thread; what it returns is as thread-safe as the contract says.

    The first backend of a job may serve the endpoint, so it is closed last.
    """

    def __init__(self, harness: Harness, directory: Path) -> None:
        self.harness, self._below = harness, directory
        self.run_id = f"conformance-{uuid.uuid4().hex[:8]}"
        self.endpoint = harness.endpoint(Path(tempfile.mkdtemp(prefix="job-", dir=directory)))
        self._created: list[Any] = []

    @property
    def ttl(self) -> float:
        """A time to live, in seconds, whose end a test can wait for: the harness's, as parsed by the backend."""
        return min(float(getattr(self.prepared().options, "ttl", _TTL_S)), 2 * _TTL_S)

    def request(self, endpoint: str | None = None, **fields: Any) -> Request:
        """A request of one of its nodes. ``fields`` are those of ``Request``."""
        return self.harness.request(endpoint or self.endpoint, **{"run_id": self.run_id, "max_nodes": 8, **fields})

    def prepared(self, endpoint: str | None = None, **fields: Any) -> Request:
        """The same, checked and with its options."""
        with mock.patch.dict(os.environ, self.harness.environment):  # a password, which the check may look for
            return prepare(entry(self.harness.backend), self.request(endpoint, **fields))

    def created(self, endpoint: str | None = None, **fields: Any) -> Any:
        """Whatever the backend's ``create`` returns for one more node, in this process."""
        request = self.prepared(endpoint, **fields)
        with mock.patch.dict(os.environ, self.harness.environment):
            created = entry(self.harness.backend).backend.create(request)
        self._created.append(created)
        return created

    def session(self, ttl: float = LONG, losses: Losses | None = None) -> Session:
        return opened(self.created(), ttl, losses)

    def not_serving(self) -> dict[str, str]:
        """``--rdzv-conf`` that keeps a node from serving the endpoint, if the backend has such an option."""
        return {"is_host": "false"} if takes(self.harness, "is_host") else {}

    def client(self, do: Callable[..., None], *arguments: Any) -> Client:
        """A node as a process, where ``do(connection, backend, *arguments)`` is called."""
        output = Path(tempfile.mkdtemp(prefix="client-", dir=self._below), "log")
        return Client(output, self.harness.environment, run_client, self.request(), do, *arguments)

    @contextmanager
    def holder(self, key: str, ttl: float, child: str = "") -> Iterator[Client]:
        """A node as a process, with a session that has written ``key`` as ephemeral."""
        with self.client(hold_session, key, ttl, child) as client:
            client.ttl = client.next()
            yield client

    def close(self) -> None:
        """Close everything that was created, the first one last. Raises the first error that any of them raises."""
        errors = []
        while self._created:
            created = self._created.pop()
            end = created.shutdown if isinstance(created, TorchHandler) else getattr(created, "close", None)
            try:
                if end is not None:
                    bounded(f"the end of a {type(created).__name__}", end)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class Client(Forked):
    """The process of a node, which does what it was told; its last words are in the message of a failed test."""

    ttl = 0.0
    """The time to live that its session was granted."""

    def next(self) -> Any:
        """Wait for what it says next. Raises ``AssertionError`` if it has ended instead."""
        assert self.connection.poll(PATIENCE), f"a node (pid {self.pid}) has said nothing for {PATIENCE:g} s"
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            code = self.wait(PATIENCE)
            raise AssertionError(f"the process of a node ended with code {code}:\n{self.log}") from None

    def rest(self) -> list[Any]:
        said: list[Any] = []
        with suppress(EOFError, OSError):  # it was saying something
            while True:
                said.append(self.connection.recv())
        return said

    def go_on(self) -> None:
        """Let it do what it waits for, or continue after ``stop``."""
        with suppress(OSError):
            self.connection.send("go on")
        os.kill(self.pid, signal.SIGCONT)

    def leave(self) -> None:
        """Let it close its session and its backend, and end."""
        self.connection.close()
        code = self.wait(PATIENCE)
        assert code == 0, f"the process of a node that was to leave ended with code {code}:\n{self.log}"


def run_client(tests: Connection, request: Request, do: Callable[..., None], *arguments: Any) -> None:
    """What such a process runs: the backend is found by name through the plug-in host, as in a launch."""
    found = entry(request.backend)
    backend = found.backend.create(prepare(found, request))
    do(tests, backend, *arguments)
    with suppress(EOFError):
        while True:  # until it is to leave
            tests.recv()
    if hasattr(backend, "close"):
        backend.close()


def hold_session(tests: Connection, backend: CoordinationBackend, key: str, ttl: float, child: str) -> None:
    """Open a session, write a key as ephemeral, and say when the session is lost.

    With ``child``, ``fork`` or ``spawn``, it leaves a process behind that has inherited what it could.
    """
    session = backend.open_session(ttl, on_lost=lambda error: tests.send(str(error)), timeout=PATIENCE)
    session.put({key: b"here"}, ephemeral=True, timeout=PATIENCE)
    if child == "fork" and os.fork() == 0:
        tests.poll(None)
        os._exit(0)
    elif child == "spawn":
        subprocess.Popen(["cat"], stdin=tests.fileno(), close_fds=False)
    tests.send(session.ttl)


def serve(tests: Connection, backend: Any) -> None:
    """Say whether it serves the endpoint, and do nothing more."""
    tests.send(bool(getattr(backend, "hosts_service", False)))


def add(tests: Connection, backend: RendezvousBackend, times: int) -> None:
    """Wait for all writers to begin at once; then read, add 1, and write if nobody else has, ``times`` times."""
    tests.send("ready")
    tests.recv()
    for _ in range(times):
        while True:
            state, token = backend.get_state() or (b"0", None)
            # no two write the same: torch's c10d takes another's state for its own if they are equal
            mine = b"%d, written by process %d" % (int(state.partition(b",")[0]) + 1, os.getpid())
            written = backend.set_state(mine, token)
            if written is not None and written[2]:
                break
    tests.send("done")


def write_on(tests: Connection, backend: RendezvousBackend) -> None:
    """Write as fast as it can until it is killed, and say which writes are done."""
    held = backend.get_state()
    assert held is not None, "the state is gone"
    state, token = held
    number = number_of(state) or 0
    while True:
        number += 1
        written = backend.set_state(numbered(number), token)
        assert written is not None, "the state is gone"
        assert written[2], "refused, though nobody else writes"
        token = written[1]
        tests.send(number)


def numbered(number: int) -> bytes:
    """A large state, different for each number and process, from which one can tell if it is incomplete."""
    return b"%d,%d," % (number, os.getpid()) + bytes([number % 256]) * _BIG


def number_of(state: bytes) -> int | None:
    """The number of such a state; None if it is not one."""
    head, _, rest = state.partition(b",")
    number = int(head) if head.isdigit() else -1
    return number if rest.partition(b",")[2] == bytes([number % 256]) * _BIG else None


class ServingNode:
    """A ``Service``: the process of a node that serves the endpoint and does nothing else."""

    keeps_data = False

    def __init__(self, job: ContractJob) -> None:
        self._job = job
        self._client: Client | None = None
        self.serves = False
        """Whether the backend serves the endpoint there; otherwise there is a service that we have no handle on."""

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._client.pid,) if self._client is not None else ()

    def start_again(self) -> None:
        self._client = self._job.client(serve)
        self.serves = self._client.next()

    def kill(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


NO_HANDLE = "not tried: the harness does not control the processes of the service"
NO_RELAY = "not tried: the endpoint is not a single TCP host and port, so no relay can be put in front of it"


def of_kind(*kinds: Kind) -> Callable[[Test], Test]:
    """Mark a test of something that only backends of these kinds have: for others it is a gap, with the reason.

    The test needs the fixture ``job``. It is a gap, too, where there is no ``service`` or no ``relay`` that it needs.
    """

    def reason(_: Any, job: ContractJob, **fixtures: Any) -> str:
        if job.harness.kind not in kinds:
            promises = " or a ".join(CONTRACTS[kind].__name__ for kind in kinds)
            return f"not for a {CONTRACTS[job.harness.kind].__name__}: only a {promises} promises it"
        if fixtures.get("service", job) is None:
            return NO_HANDLE
        return NO_RELAY if fixtures.get("relay", job) is None else ""

    return gap_if(reason)


class JobTheme(Theme):
    """A theme whose tests have a job: the fixture ``job``. ``kind``: all tests of the class are of that kind."""

    def __init_subclass__(cls, kind: Kind | None = None) -> None:
        for name, test in [*vars(cls).items()]:
            if kind is not None and name.startswith("test_"):
                setattr(cls, name, of_kind(kind)(test))

    @pytest.fixture
    def job(self, harness: Harness, tmp_path: Path) -> Iterator[ContractJob]:
        job = ContractJob(harness, tmp_path)
        yield job
        job.close()


def state_of(backend: RendezvousBackend) -> bytes | None:
    """The state that ``backend`` holds."""
    held = backend.get_state()
    return None if held is None else held[0]


def handler_of(job: ContractJob, nodes: int) -> Any:
    """The handler of the first of ``nodes`` nodes, with the others absent."""
    ranks = Capability.NODE_RANK in entry(job.harness.backend).backend.capabilities
    return job.created(min_nodes=nodes, max_nodes=nodes, node_rank=0 if ranks else None)
