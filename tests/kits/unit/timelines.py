"""Timelines as agents would have written them, by clocks that are wrong by as much as a test says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdzv_launcher.run.timeline import PHASES, TimelineRecord


@dataclass
class Node:
    """One agent. Times are true ones, in seconds; what is written is by the machine's own clocks."""

    name: str
    rank: int = 0
    mono: float = 0.0
    """What its monotonic clock is ahead."""
    wall: float = 1_700_000_000.0
    """What its other clock is ahead."""
    clock: str = ""
    run: str = "job"
    records: list[TimelineRecord] = field(default_factory=list)
    _round: int = 0
    _phase: str = ""

    def __post_init__(self) -> None:
        self.clock = self.clock or f"clock of {self.name}"

    def note(self, at: float, event: str, cause: str = "", **facts: Any) -> None:
        mono = at + self.mono
        phase = self._phase = PHASES.get(event, self._phase)
        self._round = facts.pop("round", self._round)
        record = (event, mono, at + self.wall, self.run, self.rank, self.name, f"agent-{self.name}", self._round, phase)
        self.records.append(TimelineRecord(*record, cause, facts))

    def notes(self, events: dict[float, str]) -> None:
        """Write down several, by when they were."""
        for at, event in events.items():
            self.note(at, event)

    def open(self, at: float) -> None:
        self.note(at, "opened", clock=self.clock, pid=1)

    def round(self, number: int, joined: float, nodes: int, *, took: float = 0.004, numbered: bool = True) -> None:
        """Join a round, which is complete for this node so much later."""
        self.note(joined, "joined")
        if numbered:
            self.note(joined + took / 4, "placed", round=number, world=nodes, numbered=True)
            if self.rank == 0:
                self.note(joined + took / 3, "served", world=nodes, numbered=True)
            self.note(joined + took / 2, "reached", world=nodes, numbered=True)
        self.note(joined + took, "complete", round=number, world=nodes, numbered=numbered)
        self.note(joined + took + 0.01, "started")

    def write(self, directory: Path) -> Path:
        path = directory / f"{self.run}-{self.name}.jsonl"
        path.write_bytes(b"".join(each.line() for each in self.records))
        return path


def together(nodes: Sequence[Node], number: int, at: float, *, rtt: float = 0.001) -> None:
    """All nodes join a round at ``at``: each knows that it is complete ``rtt`` after the last has reached the store."""
    for order, node in enumerate(nodes):
        node.round(number, at + order * rtt / 10, len(nodes), took=2 * rtt)


def lines(directory: Path) -> Iterator[str]:
    for path in sorted(directory.iterdir()):
        yield from path.read_text().splitlines()
