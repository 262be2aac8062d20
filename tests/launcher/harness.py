"""Real agents as real processes, their output, and the certainty that none of them outlives a test."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from warm_agents import WarmAgent, can_be_warm

from rdzv_plugins.kvstore.listening import port_holder

WORKERS = Path(__file__).parent / "workers"
BIN = Path(sys.executable).parent
MARK = "RDZV_TEST_MARK"
FEW_FILES = 300


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to clients and to port 0."""
    while True:
        port = random.randint(20000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def default_signals() -> None:
    """Signals as a terminal gives them: CI, nohup and background jobs start us with some ignored."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


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


def clean_environment() -> dict[str, str]:
    """The variables of this process, but for those that concern the launcher."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "RDZV_", "TORCHELASTIC_"))}
    return clean | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Agent:
    """One launcher process; its output goes to a file, so that nothing ever blocks on a full pipe.

    ``warm`` saves it the import of torch: see warm_agents.py.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Path,
        env: dict[str, str],
        stderr: IO[bytes] | None,
        warm: bool = False,
        inside: int = 0,
    ) -> None:
        self.output = output
        self.process: subprocess.Popen[bytes] | WarmAgent
        if warm:
            self.process = WarmAgent(command, output, env, inside)
            return
        errors = subprocess.STDOUT if stderr is None else stderr
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdout=file,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env=env,
                cwd=output.parent,
                preexec_fn=default_signals,
            )

    @property
    def is_warm(self) -> bool:
        return isinstance(self.process, WarmAgent)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self, timeout: float = 120) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"agent {self.pid} still runs after {timeout} s:\n{self.text}") from None

    def wait_for(self, pattern: str, timeout: float = 90) -> re.Match[str]:
        """Until its output matches."""
        return wait_until(lambda: re.search(pattern, self.text), timeout, lambda: f"no {pattern!r} in:\n{self.text}")

    def reports(self) -> list[dict[str, Any]]:
        """What report.py printed: one dictionary per worker and round."""
        return [json.loads(line) for line in re.findall(r"^\{.*\}$", self.text, re.MULTILINE)]


def wait_until(condition: Callable[[], Any], timeout: float, what: Callable[[], str]) -> Any:
    """Poll for a state of the outside world that nobody can notify us of; fails with ``what()``."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s: {what()}")
        time.sleep(0.05)
    return value


def file_limit(agent: Agent) -> int:
    """How many files it may open now."""
    return resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)[0]


class Cluster:
    """Starts agents that carry a mark in their environment, and finds everything that carries it."""

    warm = False
    """Whether agents may be forks of a process that has imported torch, which carry no mark, but their workers do."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.port = free_port()
        self.agents: list[Agent] = []
        self.env = clean_environment() | {MARK: self.mark}

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @staticmethod
    def script(name: str) -> Path:
        """The path of one of our worker scripts."""
        return WORKERS / name

    def wait_listening(self) -> None:
        """Until somebody listens at the endpoint."""

        def listening() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(listening, 60, lambda: f"nobody listens at {self.endpoint}")

    def listens(self, agent: Agent) -> bool:
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
    ) -> Agent:
        """Run any launcher command of the environment under test.

        ``before`` goes in front of it. If all that this does is to enter the namespaces of a process, ``inside`` is it.
        """
        name, *rest = map(str, command)
        output = self.directory / f"agent{len(self.agents)}.log"
        plain = name == "rdzv-run" and stderr is None and (inside > 0 or not before)
        warm = self.warm and plain and can_be_warm(self.env | env)
        whole = [*(() if warm else before), str(BIN / name), *rest]
        agent = Agent(whole, output, self.env | env, stderr, warm, inside)
        self.agents.append(agent)
        return agent

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
    ) -> Agent:
        """An rdzv-run agent on one of our worker scripts."""
        command: list[object] = ["rdzv-run", f"--nnodes={nnodes}", f"--nproc-per-node={nproc}"]
        if backend is not None:
            command += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={self.endpoint}"]
        if rank is not None:
            command.append(f"--node-rank={rank}")
        if conf:
            command.append(f"--rdzv-conf={conf}")
        return self.start([*command, f"--max-restarts={restarts}", *options, WORKERS / script, *args], **env)

    def pair(self, script: str, *args: object, backend: str, **options: Any) -> list[Agent]:
        """Two nodes of the same job."""
        ranks = (0, 1) if backend == "static" else (None, None)
        return [self.run(script, *args, backend=backend, nnodes=2, rank=rank, **options) for rank in ranks]

    def processes(self) -> dict[int, str]:
        """Everything alive that we started, workers and their children too: pid to command line."""
        found = {}
        warm = {str(agent.pid) for agent in self.agents if agent.is_warm and agent.process.poll() is None}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if (marked or entry.name in warm) and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def workers(self, agent: Agent, script: str) -> list[int]:
        """Pids of an agent's workers."""
        children = Path(f"/proc/{agent.pid}/task").glob("*/children")
        pids = [int(pid) for file in children for pid in file.read_text().split()]
        alive = self.processes()
        return sorted(pid for pid in pids if script in alive.get(pid, ""))

    def kill(self, pid: int) -> None:
        """SIGKILL, if it is still there."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        for pid in self.processes():
            self.kill(pid)
        for agent in self.agents:
            agent.process.wait(30)


def error_of(agent: Agent, code: int) -> str:
    """The error message, after checking exit code and form."""
    assert agent.wait(90) == code, agent.text
    assert "Traceback" not in agent.text
    assert agent.text.count("rdzv-run: error: ") == 1, agent.text
    return agent.text.partition("rdzv-run: error: ")[2]


@contextmanager
def server(port: int, answer: bytes | None) -> Iterator[None]:
    """A program that is not a store: answers every connection with ``answer``, or (None) with silence."""
    listener = socket.create_server(("127.0.0.1", port))
    held = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            if answer is not None:
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in held:
            connection.close()


def new_cluster(directory: Path) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)
