"""Real launchers as real processes, with their output, and the certainty that none of them outlives a test."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.kvstore.tcpstore.wire import greet
from rdzv_plugins.testing.harness import NOTHING, Harness, entry
from rdzv_plugins.testing.parts import PATIENCE, wait_until
from rdzv_plugins.testing.processes import MARK, before_exec, clean_environment, kill, marked

Program: TypeAlias = Literal["rdzv-run", "torchrun"]

_COMMANDS: Mapping[Program, tuple[str, ...]] = {
    "rdzv-run": ("-m", "rdzv_launcher.run.cli"),
    "torchrun": ("-m", "torch.distributed.run"),
}
"""The arguments of ``python`` for each program: installed scripts do the same, and need not be on the path."""
_WORKER = Path(__file__).parent / "workers/worker.py"
WAIT_S = 2.5 * PATIENCE
"""Seconds within which everything has to happen, even on a busy machine."""
_ANSWER_S = 10
"""Seconds to wait for an answer: what is no store of torch's usually hangs up or refuses sooner."""


def cold(
    command: Sequence[str], output: Path, env: Mapping[str, str], stderr: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start any command in the directory of ``output``, the file for its stdout and, without ``stderr``, its stderr."""
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT if stderr is None else stderr,
            stdin=subprocess.DEVNULL,
            env={**env},
            cwd=output.parent,
            preexec_fn=before_exec(),
        )


class AgentProcess:
    """One launcher process; its output goes to a file, so that nothing ever blocks on a full pipe."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        """What the agent and its workers have printed so far, stderr and stdout."""
        return self.output.read_text(errors="replace")

    def wait(self, timeout: float = WAIT_S) -> int:
        """The exit code, after at most ``timeout`` seconds. Raises ``AssertionError`` with its output."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"agent {self.pid} is still running after {timeout:g} s:\n{self.text}") from None

    def wait_for(self, pattern: str, timeout: float = WAIT_S) -> re.Match[str]:
        """Wait until its output matches, at most ``timeout`` seconds. Raises ``AssertionError`` with its output."""
        match: re.Match[str] = wait_until(
            lambda: re.search(pattern, self.text), lambda: f"no {pattern!r} in:\n{self.text}", timeout
        )
        return match

    def reports(self) -> list[dict[str, Any]]:
        """What its workers have printed as one line of JSON each, in order."""
        return [json.loads(line) for line in re.findall(r"^\{.*\}$", self.text, re.MULTILINE)]


class Agents:
    """Starts agents that carry a mark in their environment, and finds everything that carries it.

    All run in ``directory``. For use by one thread. ``close`` kills what is left.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.agents: list[AgentProcess] = []
        self.env = clean_environment() | {**(environment or {})} | {MARK: self.mark}

    def launch(self, program: Program, arguments: Iterable[object], **env: str) -> AgentProcess:
        output, command = self.next_output(), [sys.executable, *_COMMANDS[program], *map(str, arguments)]
        return self.add(cold(command, output, self.env | env), output)

    def next_output(self) -> Path:
        return self.directory / f"agent{len(self.agents)}.log"

    def add(self, process: subprocess.Popen[bytes], output: Path) -> AgentProcess:
        """Add an agent that was started separately. Its output is in ``next_output()``."""
        agent = AgentProcess(process, output)
        self.agents.append(agent)
        return agent

    def processes(self) -> dict[int, str]:
        """Everything alive that we have started, including workers and their children: pid to command line."""
        return marked(self.mark)

    def close(self) -> None:
        """Kill everything: nothing is left when this returns. May be called again."""
        wait_until(self._killed, lambda: f"these processes do not end: {self.processes()}", WAIT_S)
        for agent in self.agents:
            agent.process.wait(WAIT_S)

    def _killed(self) -> bool:
        """True if nothing was left to kill: a killed agent may have just started a worker."""
        left = self.processes()
        for pid in left:
            kill(pid)
        return not left


def outputs(agents: Iterable[AgentProcess]) -> str:
    """What all of them have printed, for the message of a failure."""
    return "\n".join(f"--- agent {agent.pid}:\n{agent.text}" for agent in agents)


class AgentsJob(Agents):
    """One job of the backend under test, of nodes on this machine with one worker each, started as its users do.

    A node's rank is given if the backend promises to heed it (``static`` cannot do without).
    """

    def __init__(self, harness: Harness, directory: Path) -> None:
        super().__init__(directory, {**harness.environment, "GLOO_SOCKET_IFNAME": "lo"})
        meeting = directory / "meeting"
        meeting.mkdir()
        self._harness = harness
        self._ranked = Capability.NODE_RANK in entry(harness.backend).backend.capabilities
        self.endpoint = harness.endpoint(meeting)
        self.run_id = f"launch-{uuid.uuid4().hex[:8]}"
        self.stop = directory / "stop"
        """The file that makes workers end."""

    def node(
        self, rank: int, *how: object, nnodes: object = 2, restarts: int = 0, conf: Mapping[str, str] = NOTHING
    ) -> AgentProcess:
        """Start a node by rdzv-run; its worker runs until ``stop``, or as ``how`` says. ``conf`` is added."""
        flags = self._flags(self._harness.backend, nnodes, {**self._harness.conf, **conf})
        flags += [f"--max-restarts={restarts}", *([f"--node-rank={rank}"] if self._ranked else [])]
        return self.launch("rdzv-run", [*flags, _WORKER, *(how or [self.stop])])

    def torchrun(self, rank: int) -> AgentProcess:
        """Start a node of two by plain torchrun, on the backend under test."""
        flags = self._flags(f"rdzv-plugins.{self._harness.backend}", 2, self._harness.conf)
        env = {"PET_NODE_RANK": str(rank)} if self._ranked else {}  # torchrun keeps --node-rank to itself
        return self.launch("torchrun", [*flags, _WORKER, self.stop], **env)

    def torchs_own(self, backend: str, how: object, conf: Mapping[str, str] = NOTHING) -> AgentProcess:
        """Start a node of two by torchrun, on torch's own backend of that name, with the job's endpoint and id."""
        return self.launch("torchrun", [*self._flags(backend, 2, conf), _WORKER, how])

    def _flags(self, backend: str, nnodes: object, conf: Mapping[str, str]) -> list[str]:
        flags = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={self.endpoint}", f"--rdzv-id={self.run_id}"]
        flags += [f"--nnodes={nnodes}", "--nproc-per-node=1"]
        pairs = ",".join(f"{key}={value}" for key, value in conf.items())
        return [*flags, f"--rdzv-conf={pairs}"] if pairs else flags

    def is_torchs_store(self) -> bool:
        """Whether a store of torch's, or one that speaks like it, answers at the endpoint, which is a TCP one.

        Waits until something accepts connections there.
        """
        one = parse_endpoint(self.endpoint.split(",")[0].rpartition("://")[2], None)

        def connected() -> socket.socket | None:
            try:
                return dial(one.host, one.port, _ANSWER_S)
            except OSError:
                return None

        connection: socket.socket = wait_until(connected, f"nobody listens at {self.endpoint}", WAIT_S)
        with connection:
            try:
                greet(connection)
            except OSError:  # silent, hangs up, or answers something else
                return False
        return True

    def finish(self, *agents: AgentProcess) -> None:
        """Stop the workers; check that all ``agents`` end with 0 and nothing of the job is left."""
        self.stop.touch()
        codes = [agent.wait() for agent in agents]
        assert not any(codes), f"exit codes {codes}, not all 0"
        self.nothing_left()

    def nothing_left(self) -> None:
        """Check that no process of the job lives. Raises ``AssertionError`` listing those that do."""
        left = self.processes()
        assert not left, f"processes left behind: {left}"
