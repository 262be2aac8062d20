"""Real launchers as real processes, with their output, and the certainty that none of them outlives a test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from rdzv_plugins.testing.agents.processes import MARK, clean_environment, kill, marked, wait_until
from rdzv_plugins.testing.agents.warm import Program, can_be_warm, warm_agent
from rdzv_plugins.testing.forks.forks import Fork
from rdzv_plugins.testing.forks.signals import before_exec

Process: TypeAlias = "subprocess.Popen[bytes] | Fork"

COMMANDS: Mapping[Program, tuple[str, ...]] = {
    "rdzv-run": ("-m", "rdzv_launcher.run.cli"),
    "torchrun": ("-m", "torch.distributed.run"),
}
"""The arguments of ``python`` for each program: installed scripts do the same, and need not be on the path."""


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


class Agent:
    """One launcher process; its output goes to a file, so that nothing ever blocks on a full pipe."""

    def __init__(self, process: Process, output: Path) -> None:
        self.process = process
        self.output = output

    @property
    def is_warm(self) -> bool:
        """Whether it is a fork of a process that has imported torch."""
        return isinstance(self.process, Fork)

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self.process.pid

    @property
    def text(self) -> str:
        """What the agent and its workers have printed so far, stderr and stdout."""
        return self.output.read_text(errors="replace")

    def wait(self, timeout: float = 150) -> int:
        """The exit code, after at most ``timeout`` seconds. Raises ``AssertionError`` with its output."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"agent {self.pid} still runs after {timeout} s:\n{self.text}") from None

    def wait_for(self, pattern: str, timeout: float = 150) -> re.Match[str]:
        """Wait until its output matches, at most ``timeout`` seconds. Raises ``AssertionError`` with its output."""
        match: re.Match[str] = wait_until(
            lambda: re.search(pattern, self.text), timeout, lambda: f"no {pattern!r} in:\n{self.text}"
        )
        return match

    def reports(self) -> list[dict[str, Any]]:
        """What its workers have printed as one line of JSON each, in order."""
        return [json.loads(line) for line in re.findall(r"^\{.*\}$", self.text, re.MULTILINE)]


class Agents:
    """Starts agents that carry a mark in their environment, and finds everything that carries it.

    All run in ``directory``. For use by one thread. ``close`` kills what is left.
    """

    with_torch = False
    """Whether warm agents are to have torch from the start, also where their command lines do not say so."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.agents: list[Agent] = []
        self.env = clean_environment() | {**(environment or {})} | {MARK: self.mark}

    def launch(self, program: Program, arguments: Iterable[object], **env: str) -> Agent:
        """Start one more agent, with ``env`` added to the variables; a warm one if they allow that."""
        output, whole, variables = self.next_output(), [*map(str, arguments)], self.env | env
        if can_be_warm(variables):
            return self.add(warm_agent(program, whole, output, variables, with_torch=self.with_torch), output)
        return self.add(cold([sys.executable, *COMMANDS[program], *whole], output, variables), output)

    def next_output(self) -> Path:
        """The file for the output of the next agent."""
        return self.directory / f"agent{len(self.agents)}.log"

    def add(self, process: Process, output: Path) -> Agent:
        """Add an agent that was started separately. Its output is in ``next_output()``."""
        agent = Agent(process, output)
        self.agents.append(agent)
        return agent

    def processes(self) -> dict[int, str]:
        """Everything alive that we have started, including workers and their children: pid to command line."""
        return marked(self.mark)

    def close(self) -> None:
        """Kill everything: nothing is left when this returns. May be called again."""
        wait_until(self._killed, 60, lambda: f"these do not end: {self.processes()}")
        for agent in self.agents:
            agent.process.wait(60)

    def _killed(self) -> bool:
        """True if nothing was left to kill: a killed agent may have just started a worker."""
        left = self.processes()
        for pid in left:
            kill(pid)
        return not left


def outputs(agents: Iterable[Agent]) -> str:
    """What all of them have printed, for the message of a failure."""
    return "\n".join(f"--- agent {agent.pid}:\n{agent.text}" for agent in agents)
