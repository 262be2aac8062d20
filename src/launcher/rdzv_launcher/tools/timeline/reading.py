"""Turns files of timelines into agents with their events. What cannot be read is named, and affects nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rdzv_launcher.run.timeline import SUFFIX, Record, parse
from rdzv_plugins.errors import UsageError
from rdzv_plugins.plain_text import some

_LONGEST = 1 << 20
"""The most bytes of a line."""
_LINES_NAMED = 3


@dataclass
class Agent:
    """One agent process: its events, in the order of its monotonic clock."""

    name: str
    """Unique to the process, as in its events."""
    run: str
    host: str
    file: str
    records: list[Record] = field(default_factory=list)

    @property
    def clock(self) -> str:
        """The id of its monotonic clock: agents with the same id share one."""
        told = self.records[0].facts.get("clock")
        return told if isinstance(told, str) and told else f"agent {self.name}"

    @property
    def numbered(self) -> bool:
        """Its rounds have the numbers that all nodes give them; otherwise it has counted them by itself."""
        return any(each.facts.get("numbered") is True for each in self.records)

    @property
    def title(self) -> str:
        """The agent's name for people."""
        nodes = [each.node for each in self.records if each.node is not None]
        pid = self.records[0].facts.get("pid")
        whose = f" (pid {pid})" if isinstance(pid, int) else ""
        return f"node {nodes[-1]} on {self.host}{whose}" if nodes else f"a node on {self.host}{whose}"


def read(paths: Iterable[str]) -> tuple[list[Agent], list[str]]:
    """All agents in the files, and in the files of the directories; and a sentence for everything that was left out.

    Raises ``UsageError`` if there is no event at all.
    """
    agents: dict[tuple[str, str], Agent] = {}
    complaints: list[str] = []
    files: dict[str, None] = {}
    for path in paths:
        found = list(_files_of(path, complaints))
        files.update(dict.fromkeys(found))
    for file in files:
        for agent in _read_file(file, complaints):
            known = agents.setdefault((agent.run, agent.name), agent)
            if known is not agent:
                complaints.append(f"{file}: its agent {agent.name} is in {known.file}, too: read there")
    if not agents:
        raise UsageError(
            "; ".join(complaints) or "there is no file to read",
            remedy="Give the directory of --timeline, or files from there.",
        )
    return list(agents.values()), complaints


def _files_of(path: str, complaints: list[str]) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    try:
        names = sorted(each for each in os.listdir(path) if each.endswith(SUFFIX))
    except OSError as error:
        complaints.append(f"{path}: {error.strerror}")
        return
    if not names:
        complaints.append(f"{path}: there is no file that ends in {SUFFIX}")
    yield from (os.path.join(path, name) for name in names)


def _read_file(file: str, complaints: list[str]) -> list[Agent]:
    """The agents in one file; several, if somebody has put files together."""
    agents: dict[tuple[str, str], Agent] = {}
    wrong: dict[str, list[int]] = {}
    lines = 0
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # a pipe would keep us waiting
            complaints.append(f"{file}: it is no regular file")
            return []
        with open(file, "rb") as stream:
            while line := stream.readline(_LONGEST):
                lines += 1
                if not line.strip():
                    continue
                try:
                    record = parse(line)
                except ValueError as error:
                    torn = not line.endswith(b"\n") and len(line) < _LONGEST
                    why = "it is not whole: its agent was killed, or writes on" if torn else str(error)
                    wrong.setdefault(why, []).append(lines)
                    continue
                agent = Agent(record.agent, record.run, record.host, file)
                agents.setdefault((record.run, record.agent), agent).records.append(record)
    except OSError as error:
        complaints.append(f"{file}: {error.strerror}")
    else:
        complaints += [] if lines else [f"{file}: it is empty"]
    for why, numbers in wrong.items():
        complaints.append(f"{file}: {_lines(numbers)} left out: {why}")
    for agent in agents.values():
        agent.records.sort(key=lambda each: each.mono)
    return list(agents.values())


def _lines(numbers: list[int]) -> str:
    several = len(numbers) > 1
    return f"line{'s' if several else ''} {some(numbers, _LINES_NAMED)} {'are' if several else 'is'}"
