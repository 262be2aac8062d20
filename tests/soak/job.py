"""The job under test: an agent on each host, and what can be seen of it from outside; and the server it meets at."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kits.eventually import eventually
from kits.hosts.hosts import Host

from rdzv_plugins.testing.launched import AgentProcess, cold
from rdzv_plugins.testing.processes import MARK, clean_environment, kill, marked, send

BIN = Path(sys.executable).parent
_PORT = 29400
_END_S = 60.0
_SCRIPT = Path(__file__).parent / "worker.py"
_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
"""In front of a command: it ends when this process does."""


class AgentProcess(AgentProcess):
    """One agent, from its start to its end. It and all that it starts carry ``token`` in their environment."""

    def __init__(self, node: str, process: subprocess.Popen[bytes], output: Path, token: str) -> None:
        super().__init__(process, output)
        self.node, self.token = node, token
        self.started = time.monotonic()
        self.sent: list[signal.Signals] = []
        """Those that end it."""
        self.heard = False
        """It was seen to have said something: its signals are handled."""
        self.code: int | None = None

    def send(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended."""
        if self.code is None:
            if number in (signal.SIGKILL, signal.SIGTERM):
                self.sent.append(number)
            send(self.pid, number)

    def look(self) -> bool:
        """Whether it has ended since the last call."""
        self.heard = self.heard or self.output.stat().st_size > 0
        if self.code is not None:
            return False
        self.code = self.process.poll()
        return self.code is not None

    def processes(self) -> dict[int, str]:
        """What lives of it and of all that it has started: pid to command."""
        return marked(self.token)

    def workers(self) -> list[int]:
        """The processes that run the script now, and not the agent, whose command names it too."""
        running = {pid: command.split() for pid, command in self.processes().items() if pid != self.pid}
        return sorted(
            pid
            for pid, words in running.items()
            if str(_SCRIPT) in words and not any(word.endswith("/rdzv-run") for word in words)
        )

    def said(self) -> list[str]:
        """Its last lines, and the last of those that name something bad."""
        lines = self.text.splitlines()[-200:]
        return [*[line for line in lines if re.search(r"error|lost|Traceback", line)][-6:], "...", *lines[-4:]]


@dataclass
class Node:
    """A host and its place in the job."""

    host: Host
    agent: AgentProcess | None = None
    impaired: bool = False
    """A fault keeps it from taking part."""
    starts: int = 0

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def up(self) -> bool:
        """Its agent lives."""
        return self.agent is not None and self.agent.code is None


class Job:
    """Starts agents on nodes. ``command`` is that of rdzv-run, without the script. For one thread."""

    def __init__(self, directory: Path, nodes: Sequence[Node], command: Sequence[str]) -> None:
        self.directory = directory
        self.nodes = {node.name: node for node in nodes}
        self.agents: list[AgentProcess] = []
        self._command = command
        self._read: dict[Path, int] = {}
        for name in ("agents", "records", "tmp"):
            (directory / name).mkdir()

    def start(self, node: Node) -> AgentProcess:
        """A new agent there, as a scheduler does it."""
        assert not node.up
        node.starts += 1
        token = uuid.uuid4().hex
        folder = self.directory / "tmp" / node.name
        folder.mkdir(exist_ok=True)
        env = {"SOAK_AGENT": token, "SOAK_DIR": str(self.directory), "SOAK_NODE": node.name, "TMPDIR": str(folder)}
        output = self.directory / "agents" / f"{node.name}-{node.starts}.log"
        command = [*_WITH_US, *node.host.enter(self.directory), *self._command, str(_SCRIPT)]
        process = cold(command, output, clean_environment() | {MARK: token} | env)
        node.agent = AgentProcess(node.name, process, output, token)
        self.agents.append(node.agent)
        return node.agent

    def new_records(self) -> Iterator[dict[str, Any]]:
        """What workers have written since the last call."""
        for path in sorted((self.directory / "records").glob("*.jsonl")):
            offset = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = offset + len(whole)
            yield from map(json.loads, whole.splitlines())

    def kill_all(self) -> None:
        """Nothing of any agent is left."""
        deadline = time.monotonic() + 30
        for agent in self.agents:
            agent.send(signal.SIGKILL)
        while left := [pid for agent in self.agents for pid in agent.processes()]:
            for pid in left:
                kill(pid)
            if time.monotonic() > deadline:
                raise RuntimeError(f"these processes do not end: {left}")
            time.sleep(0.05)
        for agent in self.agents:
            agent.process.wait(30)

    def left_files(self, node: str) -> list[str]:
        """What is left of ours in a node's directory of temporary files.

        But for logs, which are the user's: an agent stores there where workers are that do not end.
        """

        def has_logs_alone(directory: Path) -> bool:
            files = [path for path in directory.rglob("*") if not path.is_dir()]
            return bool(files) and all(path.suffix == ".log" for path in files)

        found = (self.directory / "tmp" / node).glob("rdzv*")
        return sorted(path.name for path in found if not (path.is_dir() and has_logs_alone(path)))


class Server:
    """One ``rdzv serve``."""

    def __init__(self, host: Host, directory: Path, conf: Sequence[str]) -> None:
        self._host, self._directory, self._starts = host, directory, 0
        self.endpoint = f"{host.address}:{_PORT}"
        self._command = [*_WITH_US, *host.enter(directory), str(BIN / "rdzv"), "serve"]
        self._command += [f"--rdzv-endpoint={self.endpoint}", f"--rdzv-conf={','.join(conf)}"]
        self.restart()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def restart(self) -> None:
        self._starts += 1
        self._process = cold(self._command, self._directory / f"server-{self._starts}.log", clean_environment())
        eventually(lambda: self._host.listens(_PORT) or not self.alive, lambda: "rdzv serve does not listen")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(_END_S)

    def stop(self) -> None:
        send(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        send(self.pid, signal.SIGCONT)
