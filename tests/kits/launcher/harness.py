"""Real agents as real processes, their output, and the certainty that none of them outlives a test."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from kits import TESTS
from kits.distribution import leave
from kits.eventually import eventually
from kits.warm.agents import can_be_warm, warm_agent
from rdzv_plugins.kvstore.sockets.listening import port_holder
from rdzv_plugins.system.processes import read_file, read_stat
from rdzv_plugins.testing.harness import free_port
from rdzv_plugins.testing.launched import AgentProcess, Agents, cold
from rdzv_plugins.testing.processes import kill

WORKERS = TESTS / "launcher" / "workers"
BIN = Path(sys.executable).parent
FEW_FILES = 300


@contextmanager
def few_files() -> Iterator[None]:
    """Whoever is started now has a low soft limit of open files, as most systems set it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > FEW_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def file_limit(agent: AgentProcess) -> int:
    """How many files it may open now."""
    return resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)[0]


class Cluster(Agents):
    """Starts agents that carry a mark in their environment, and finds everything that carries it."""

    warm = True
    """Whether agents, and workers that ask for it, may be forks of a process that has imported torch. Not where it is
    tested how the command starts."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @staticmethod
    def script(name: str) -> Path:
        return WORKERS / name

    def wait_listening(self) -> None:
        """Until somebody listens at the endpoint."""

        def listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        eventually(listening, lambda: f"nobody listens at {self.endpoint}")

    def listens(self, agent: AgentProcess) -> bool:
        """True for the agent that serves the endpoint."""
        return f"pid {agent.pid} " in port_holder(self.port)

    def start(
        self,
        command: Sequence[object],
        *,
        before: Sequence[str] = (),
        inside: int = 0,
        stderr: IO[bytes] | None = None,
        **env: str,
    ) -> AgentProcess:
        """Run any launcher command of the environment under test.

        ``before`` goes in front of it. If all that this does is to enter the namespaces of a process, ``inside`` is it.
        """
        name, *rest = map(str, command)
        output, variables = self.next_output(), self.env | env
        plain = stderr is None and (inside > 0 or not before)
        if (name == "rdzv-run" or name == "torchrun") and self.warm and plain and can_be_warm(variables):
            return self.add(warm_agent(name, rest, output, variables, inside), output)
        return self.add(cold([*before, str(BIN / name), *rest], output, variables, stderr), output)

    def run(
        self,
        script: str,
        *args: object,
        backend: str | None = None,
        nnodes: object = 1,
        nproc: int = 1,
        rank: int | None = None,
        restarts: int = 0,
        conf: str = "",
        options: Sequence[object] = (),
        **env: str,
    ) -> AgentProcess:
        """An rdzv-run agent on one of our worker scripts."""
        command: list[object] = ["rdzv-run", f"--nnodes={nnodes}", f"--nproc-per-node={nproc}"]
        if backend is not None:
            command += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={self.endpoint}"]
        if rank is not None:
            command.append(f"--node-rank={rank}")
        if conf:
            command.append(f"--rdzv-conf={conf}")
        return self.start([*command, f"--max-restarts={restarts}", *options, WORKERS / script, *args], **env)

    def pair(self, script: str, *args: object, backend: str, **options: Any) -> list[AgentProcess]:
        """Two nodes of the same job. Who serves the other waits for it at the end, however slow it is."""
        ranks = (0, 1) if backend == "static" else (None, None)
        conf = options.pop("conf", "")
        conf += "" if "linger=" in conf else f"{conf and ','}linger=30"
        return [self.run(script, *args, backend=backend, nnodes=2, rank=rank, conf=conf, **options) for rank in ranks]

    def workers(self, agent: AgentProcess, script: str) -> list[int]:
        """Pids of an agent's workers, its supervisor's children; of plain torchrun, which has none, its children."""
        return sorted(
            pid
            for pid, command in self.processes().items()
            if script in command
            and comm_of(pid) != "rdzv-supervisor"
            and agent.pid in (parent := parent_of(pid), parent_of(parent))
        )

    def wait_gone(self) -> None:
        """Until nothing is left of what was sent a signal, and of which nobody can wait for the end."""
        eventually(lambda: not self.processes(), lambda: f"still there: {self.processes()}")

    def check_gone(self, *, but: str = "") -> None:
        """Nothing is left but commands that match ``but``; a killed agent's supervisor may take its time."""

        def left() -> dict[int, str]:
            return {pid: each for pid, each in self.processes().items() if not (but and re.search(but, each))}

        if any(agent.process.poll() == -signal.SIGKILL for agent in self.agents):
            eventually(lambda: not left(), lambda: f"still there: {left()}")
        assert left() == {}

    @staticmethod
    def kill(pid: int) -> None:
        """SIGKILL, if it is still there."""
        kill(pid)


class Said(NamedTuple):
    """How a command has ended, and what it printed."""

    code: int
    out: str
    err: str


def plug_in(directory: Path, module: str, source: str) -> str:
    """A directory for PYTHONPATH with a plug-in, installed as pip would leave it."""
    name = module.removeprefix("rdzv_").replace("_", "-")
    points = f"[rdzv_plugins]\n{name} = {module}\n"
    return str(leave(directory / "site", f"rdzv-{name}", points, **{module: source}))


def parent_of(pid: int) -> int:
    """0 where there is no such process any more."""
    stat = read_stat(pid)
    return stat.parent if stat is not None else 0


def comm_of(pid: int) -> str:
    """The name that a process has given itself; empty where there is no such process any more."""
    return read_file(pid, "comm").decode().strip()


def error_of(agent: AgentProcess, code: int) -> str:
    """The error message, after checking exit code and form."""
    assert agent.wait(90) == code, agent.text
    assert "Traceback" not in agent.text
    assert agent.text.count("rdzv-run: error: ") == 1, agent.text
    return agent.text.partition("rdzv-run: error: ")[2]


@contextmanager
def server(port: int, answer: bytes) -> Iterator[None]:
    """A program that is not a store: answers what it is asked with ``answer``, and hangs up."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), connection:  # it has hung up before
                connection.recv(100)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def new_cluster(directory: Path) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)
