"""The job under test: an agent on each host, and what can be seen of it from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kits.hosts.hosts import Host

from rdzv_plugins.testing.processes import MARK, clean_environment, kill, marked, send
from soak import transcripts

_BIN = Path(sys.executable).parent
_WORKERS = Path(__file__).parent / "workers"


@dataclass
class AgentProcess:
    """One agent, from its start to its end."""

    node: str
    process: subprocess.Popen[bytes]
    token: str
    """It and all that it starts carry this in their environment."""
    transcript: Path
    started: float
    sent: list[signal.Signals] = field(default_factory=list)
    """Those that end it."""
    heard: bool = False
    """It was seen to have said something."""
    ended: float | None = None
    code: int | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
        if self.ended is not None:
            return
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.sent.append(number)
        send(self.pid, number)

    def poll(self) -> bool:
        """Whether it has ended since the last call."""
        if self.ended is not None or self.process.poll() is None:
            return False
        self.ended, self.code = time.monotonic(), self.process.returncode
        return True

    def spoke(self) -> bool:
        """It has said something: its signals are handled."""
        return self.transcript.exists() and self.transcript.stat().st_size > 0

    def processes(self) -> dict[int, str]:
        """What lives of it and of all that it has started: pid to command."""
        return marked(self.token)


@dataclass
class Node:
    """A host and its place in the job."""

    host: Host
    agent: AgentProcess | None = None
    impaired: int = 0
    """Faults that keep it from taking part."""
    uncertain: bool = False
    """Whether it can take part depends on where the others meet."""
    starts: int = 0

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def up(self) -> bool:
        """Its agent lives."""
        return self.agent is not None and self.agent.ended is None

    @property
    def takes_part(self) -> bool:
        return self.up and not self.impaired and not self.uncertain


class Job:
    """Starts agents on nodes. For one thread."""

    def __init__(self, directory: Path, nodes: Sequence[Node], *, torch: bool) -> None:
        self.directory = directory
        self.nodes = {node.name: node for node in nodes}
        self.agents: list[AgentProcess] = []
        self.command: list[str] = []
        """Of rdzv-run, without the run id and the script."""
        self.number = 0
        self.script = _WORKERS / ("gloo_steps.py" if torch else "steps.py")
        for name in ("agents", "records", "start", "tmp"):
            (directory / name).mkdir()

    @property
    def run_id(self) -> str:
        return f"soak-{self.number}"

    def start(self, node: Node) -> AgentProcess:
        """A new agent there, as a scheduler does it."""
        assert not node.up
        node.starts += 1
        token = uuid.uuid4().hex
        folder = self.directory / "tmp" / node.name
        folder.mkdir(exist_ok=True)
        env = clean_environment() | {
            MARK: token,
            "SOAK_AGENT": token,
            "SOAK_DIR": str(self.directory),
            "SOAK_NODE": node.name,
            "TMPDIR": str(folder),
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        transcript = self.directory / "agents" / f"{node.name}-{node.starts}.log"
        command = [*node.host.enter(self.directory), str(_BIN / self.command[0]), *self.command[1:]]
        command += [f"--rdzv-id={self.run_id}", str(self.script)]
        process = transcripts.start(command, transcript, env, self.directory)
        node.agent = AgentProcess(node.name, process, token, transcript, time.monotonic())
        self.agents.append(node.agent)
        return node.agent

    def workers(self, node: Node) -> list[int]:
        """The processes that run the script there now, in order of their pids."""
        if node.agent is None:
            return []
        named = [pid for pid, command in node.agent.processes().items() if self._runs_script(command)]
        return sorted(pid for pid in named if pid != node.agent.pid)

    def workers_start_in(self, node: str, seconds: float) -> None:
        """From now on, on that node."""
        path = self.directory / "start" / node
        if seconds:
            path.write_text(str(seconds))
        else:
            path.unlink(missing_ok=True)

    def kill_all(self) -> None:
        """Nothing of any agent is left."""
        deadline = time.monotonic() + 30
        for agent in self.agents:
            if agent.ended is None:
                agent.sent.append(signal.SIGKILL)
        while left := [pid for agent in self.agents for pid in agent.processes()]:
            for pid in left:
                kill(pid)
            if time.monotonic() > deadline:
                raise RuntimeError(f"these processes do not end: {left}")
            time.sleep(0.05)
        for agent in self.agents:
            agent.process.wait(30)
            agent.poll()
        self.agents.clear()
        for node in self.nodes.values():
            node.agent = None

    def _runs_script(self, command: str) -> bool:
        """A worker, and not the agent, whose command names the script too."""
        words = command.split()
        return str(self.script) in words and not any(word.endswith("/rdzv-run") for word in words)


def temporary_files(directory: Path) -> list[str]:
    """What is left of ours in a node's directory for such; torch leaves a ``torchelastic_`` of each agent.

    But for logs, which are the user's: an agent stores there where workers are that do not end.
    """
    return sorted(path.name for path in directory.glob("rdzv*") if not (path.is_dir() and _has_logs_alone(path)))


def _has_logs_alone(directory: Path) -> bool:
    files = [path for path in directory.rglob("*") if not path.is_dir()]
    return bool(files) and all(path.suffix == ".log" for path in files)
