"""One job of the backend under test, with nodes in this process or in others: what its backend is tested with."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from rdzv_plugins.assemble.create import prepare
from rdzv_plugins.coordination import CoordinationBackend, Session
from rdzv_plugins.interfaces import Capability, Request, TorchHandler
from rdzv_plugins.testing.contract.parts import LONG, PATIENCE, Losses, bounded, opened
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.installed import entry
from rdzv_plugins.testing.suite.theme import Theme

Test = TypeVar("Test", bound=Callable[..., None])

_CLIENT = Path(__file__).parent / "client.py"
_TTL_S = 2.0
_KINDS = {"state": "RendezvousBackend", "coordination": "CoordinationBackend", "handler": "RendezvousHandler"}


class ContractJob:
    """A job at an endpoint of its own. For use by one thread; what it returns is as thread-safe as the contract says.

    The first backend of a job may serve the endpoint, so it is closed last.
    """

    def __init__(self, harness: Harness, directory: Path, gap: Callable[[str], None]) -> None:
        """``gap`` tells the report why something is not tested."""
        directory.mkdir()
        self.harness, self._directory, self._others = harness, directory, 0
        self.run_id = f"conformance-{uuid.uuid4().hex[:8]}"
        self.endpoint = harness.endpoint(directory)
        self.gap = gap
        self._created: list[Any] = []

    @property
    def ttl(self) -> float:
        """A time to live, in seconds, whose end a test can wait for: the harness's, as parsed by the backend."""
        return min(float(getattr(self.prepared().options, "ttl", _TTL_S)), 2 * _TTL_S)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that the backend declares."""
        return entry(self.harness.backend).backend.capabilities

    def prepared(self, endpoint: str | None = None, **fields: Any) -> Request:
        """A request of one of its nodes, checked and with its options. ``fields`` are those of ``Request``."""
        given = {"run_id": self.run_id, "max_nodes": 8} | fields
        request = self.harness.request(endpoint or self.endpoint, **given)
        with _environment(self.harness.environment):  # a backend may look for its password there when it checks
            return prepare(entry(self.harness.backend), request)

    def created(self, endpoint: str | None = None, **fields: Any) -> Any:
        """Whatever the backend's ``create`` returns for one more node, in this process."""
        request = self.prepared(endpoint, **fields)
        with _environment(self.harness.environment):
            created = entry(self.harness.backend).backend.create(request)
        self._created.append(created)
        return created

    def backend(self, endpoint: str | None = None, **fields: Any) -> CoordinationBackend:
        """One more node's view of the coordination service."""
        backend: CoordinationBackend = self.created(endpoint, **fields)
        return backend

    def session(self, ttl: float = LONG, losses: Losses | None = None) -> Session:
        """One more node's session."""
        return opened(self.backend(), ttl, losses)

    def options_of_a_client(self) -> dict[str, Any]:
        """Options for ``client.py``: who meets, and where."""
        request = self.prepared()
        return {
            "backend": request.backend,
            "run_id": request.run_id,
            "endpoint": request.endpoint,
            "conf": dict(request.conf),
        }

    def not_serving(self) -> dict[str, str]:
        """``--rdzv-conf`` that keeps a node from serving the endpoint, if the backend has such an option."""
        options = self.prepared().options
        fields = {field.name for field in dataclasses.fields(options)}
        return {"is_host": "false"} if "is_host" in fields else {}

    def client(self, key: str, ttl: float, *, child: str = "") -> AbstractContextManager[Client]:
        """A node as a process, with a session that has written ``key`` as ephemeral."""
        options = {"mode": "session", "key": key, "ttl": ttl, "child": child}
        return running(self.options_of_a_client() | options, self.harness.environment)

    def another(self) -> ContractJob:
        """Another job of the same backend. Whoever has asked for it closes it."""
        self._others += 1
        return ContractJob(self.harness, self._directory.with_name(f"job-{self._others}"), self.gap)

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


class Client:
    """``client.py`` as a process. ``first`` is what it said when it was ready."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.pid = process, process.pid
        self._said = b""
        self.first = self.line()

    def line(self) -> dict[str, Any]:
        """Wait for what it says next. Raises ``AssertionError`` if it has ended instead."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._said:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, left))
            assert ready, f"the process of a node (pid {self.pid}) has said nothing for {PATIENCE:g} s"
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                code = self.process.wait(PATIENCE)
                raise AssertionError(f"the process of a node ended with code {code}; its stderr says why")
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def kill(self) -> None:
        """Kill the process with SIGKILL; returns when it has ended."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def go_on(self) -> None:
        """Let the process continue, by SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """Let it close its session and its backend, and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        assert code == 0, f"the process of a node that was to leave ended with code {code}; its stderr says why"


@contextmanager
def running(options: dict[str, Any], environment: Mapping[str, str]) -> Iterator[Client]:
    """``client.py`` with ``options``, once it is ready. It is gone at the end, whatever happens."""
    command = [sys.executable, str(_CLIENT), json.dumps(options)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}, bufsize=0
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        with process:  # closes the pipes: that also ends a child that it has left
            process.wait(PATIENCE)


class ServingNode:
    """A ``Service``: the process of a node that serves the endpoint and does nothing else."""

    keeps_data = False

    def __init__(self, options: dict[str, Any], environment: Mapping[str, str]) -> None:
        self._options, self._environment = options | {"mode": "serve"}, environment
        self._running: AbstractContextManager[Client] | None = None
        self._client: Client | None = None

    @property
    def serves(self) -> bool:
        """Whether the backend serves the endpoint there; otherwise there is a service that we have no handle on."""
        return self._client is not None and bool(self._client.first["hosts"])

    @property
    def pids(self) -> tuple[int, ...]:
        return () if self._client is None else (self._client.pid,)

    def start_again(self) -> None:
        """Start it, for the first time or again."""
        self._running = running(self._options, self._environment)
        self._client = self._running.__enter__()

    def kill(self) -> None:
        """Kill the process with SIGKILL. May be called again."""
        context, self._running, self._client = self._running, None, None
        if context is not None:
            context.__exit__(None, None, None)


class JobTheme(Theme):
    """A theme whose tests have a job: the fixture ``job``."""

    @pytest.fixture
    def job(self, harness: Harness, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ContractJob]:
        """A separate job for each test."""
        job = ContractJob(harness, tmp_path / "job", lambda why: self.gap(request, why))
        yield job
        job.close()


def of_kind(*kinds: Literal["state", "coordination", "handler"]) -> Callable[[Test], Test]:
    """Mark a test of something that only backends of these kinds have: for others it is a gap, with the reason.

    The test needs the fixture ``job``.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(self: JobTheme, job: ContractJob, **fixtures: Any) -> None:
            if job.harness.kind not in kinds:
                promises = " or a ".join(_KINDS[kind] for kind in kinds)
                job.gap(f"not for a {_KINDS[job.harness.kind]}: it is what a {promises} promises")
            else:
                test(self, job=job, **fixtures)

        return run  # type: ignore[return-value]  # it is called as the test would be

    return decorate


def split_endpoint(endpoint: str) -> tuple[str, str, int, str] | None:
    """What precedes the host, the host, the port, and what follows; None unless there is one host and one port."""
    found = re.fullmatch(r"((?:\w+://)?(?:[^@/,]*@)?)(\[[^\]]+\]|[^:/,\[\]@]+):(\d+)(/[^,]*)?", endpoint)
    return (found[1], found[2].strip("[]"), int(found[3]), found[4] or "") if found else None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the meantime: a backend may take a password out of them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
