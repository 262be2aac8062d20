"""Small agents, a process each: a piece of Python that makes a supervisor and says line by line what it hears."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kits.eventually import eventually
from rdzv_plugins.system.processes import read_stat
from rdzv_plugins.testing.processes import (
    MARK,
    before_exec,
    clean_environment,
    kill,
    marked,
)

LIMIT_S = 90
PRELUDE = """
import json, logging, os, signal, sys, time
from rdzv_launcher.run.supervisor.supervisor import Supervisor
from rdzv_launcher.run.supervisor.messages import Lost, Preload, Start, WorkerEnded
from rdzv_plugins.errors import RdzvError

env = dict(os.environ)

def say(*what):
    sys.stdout.write(json.dumps(what) + "\\n")
    sys.stdout.flush()

class Says(logging.Handler):
    '''Says what becomes of a preload.'''

    def emit(self, record):
        if "preloaded" in record.getMessage():
            say("Preloaded" if record.levelno == logging.DEBUG else "NotPreloaded", {}, record.getMessage())

logging.getLogger("rdzv_launcher").setLevel(logging.DEBUG)
logging.getLogger("rdzv_launcher").addHandler(Says())

def hear(supervisor, ends):
    '''Say each event, until so many workers have ended or the supervisor has.'''
    while ends > 0:
        for event in supervisor.events(60):
            say(type(event).__name__, event._asdict(), str(event))
            ends -= isinstance(event, WorkerEnded)
            if isinstance(event, Lost):
                return
"""


class Agent:
    """One of them. ``read`` waits for the next thing that it says."""

    def __init__(self, source: str, directory: Path, env: Mapping[str, str], **options: Any) -> None:
        self.errors = directory / f"errors-{uuid.uuid4().hex[:8]}"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PRELUDE + source],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=directory,
                env=dict(env),
                text=True,
                preexec_fn=before_exec(),
                **options,
            )
        self.pid = self.process.pid

    def read(self) -> list[Any]:
        """The next line of its output. An agent that ends without one has failed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        said: list[Any] = json.loads(line)
        return said

    def go_on(self) -> None:
        """Let it read a line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def rest(self) -> list[list[Any]]:
        """All that it says until it ends, which is to be by itself and without an error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        said = [json.loads(line) for line in self.process.stdout]  # communicate() would lose what lies in its buffer
        assert self.process.wait(LIMIT_S) == 0, self.errors.read_text()
        return said


class Agents:
    """Starts agents; what carries their mark in its environment, and what was noted, does not outlive the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._mark = uuid.uuid4().hex
        self.env = clean_environment() | {MARK: self._mark}
        self._agents: list[Agent] = []
        self._noted: set[int] = set()

    def start(self, source: str, **env: str) -> Agent:
        agent = Agent(source, self.directory, self.env | env)
        self._agents.append(agent)
        return agent

    def run(self, source: str, **env: str) -> list[list[Any]]:
        """All that an agent says."""
        return self.start(source, **env).rest()

    def note(self, pids: list[int]) -> None:
        """Processes without the mark."""
        self._noted |= {*pids}

    def processes(self) -> dict[int, str]:
        return marked(self._mark)

    def wait_gone(self, pids: list[int]) -> None:
        """Until none of these lives, and nothing that carries the mark."""
        eventually(
            lambda: not any(map(alive, pids)) and not self.processes(),
            lambda: f"left: {[*filter(alive, pids)]}, {self.processes()}",
        )

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (*self.processes(), *filter(alive, self._noted)):
            kill(pid)
        for agent in self._agents:
            agent.process.kill()
            agent.process.wait()
            for stream in (agent.process.stdin, agent.process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        pass


def state(pid: int) -> str:
    """Its state in /proc; X when there is no such process."""
    stat = read_stat(pid)
    return stat.state if stat is not None else "X"


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state(pid) == "T", lambda: f"{pid} does not stop")


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def family(directory: Path, name: str = "family") -> Path:
    """A worker with a child, a daemon that was forked twice, and one that has neither its session nor a variable."""
    return executable(
        directory / name,
        """#!/bin/sh
trap '' TERM HUP INT
note() { echo "$1" >> "$PIDS"; }
sleep 1000 &
note $!
(setsid sleep 1000 & note $!)
(env -i "PATH=$PATH" "PIDS=$PIDS" setsid sh -c 'echo $$ >> "$PIDS"; sleep 1000 & echo $! >> "$PIDS"; wait' &)
note $$
while :; do sleep 1000; done
""",
    )


FAMILY = 5


def pids_in(path: Path, count: int) -> list[int]:
    """The pids in a file, when there are so many."""

    def lines() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    eventually(lambda: len(lines()) >= count, lambda: f"of {count}: {lines()}")
    return [int(line) for line in lines()]
