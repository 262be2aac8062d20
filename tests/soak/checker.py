"""What workers have written down must fit together: one world at a time, each whole, each in a store of its own.

Records come in any order between nodes, as they are read; times are of one clock. No processes, no files.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]

_REMEMBERED = 50
"""Worlds that are compared with a new one."""


@dataclass(frozen=True)
class Violation:
    """Something that must not be, and what shows it."""

    kind: str
    text: str
    at: float
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class World:
    """The workers of one store, as far as they have been heard of."""

    id: str
    members: dict[int, Record] = field(default_factory=dict)
    """By rank: that of the first worker who had it."""
    sizes: set[int] = field(default_factory=set)
    rounds: set[int] = field(default_factory=set)
    begun: float | None = None
    """When the first of its workers began its first step: all had joined before."""
    steps: dict[int, deque[float]] = field(default_factory=dict)
    """By rank: when the last steps that were completed began."""
    last: Record | None = None
    """The last step to be completed, or checkpoint to be written."""
    settled: bool = False

    @property
    def size(self) -> int:
        return max(self.sizes, default=0)

    def worked_since(self, moment: float) -> bool:
        """Each of its ranks has begun and completed two steps since then."""
        return len(self.members) == self.size > 0 and all(
            sum(begun > moment for begun in self.steps.get(rank, ())) >= 2 for rank in self.members
        )


class Checker:
    """Feed it with records and call ``settle`` when all were read that had been written; it collects ``violations``.

    The nodes that are cut off are told to it (``cut``, ``healed``). Such a node cannot know that others have begun
    a new world, and its workers go on, since it may as well be the service that does not answer. A step that they
    had begun before may then come to its end: for ``heard_s`` seconds after the network is whole again, at most. A
    step that is begun, or a checkpoint, is a violation there, too (docs/explanation/fencing.md).
    """

    def __init__(self, heard_s: float = 0.0) -> None:
        self._heard_s = heard_s
        self._cuts: dict[str, list[tuple[float, float]]] = {}
        self.excused: set[str] = set()
        """Worlds of which such a step came to its end."""
        self.violations: list[Violation] = []
        self.worked = 0
        """Worlds in which a step was completed."""
        self.steps = 0
        self._worlds: dict[str, World] = {}
        self._accused: set[tuple[str, str]] = set()

    @property
    def newest(self) -> World | None:
        """The world that has begun last."""
        begun = [world for world in self._worlds.values() if world.begun is not None]
        return max(begun, key=lambda world: world.begun or 0.0, default=None)

    def cut(self, node: str, at: float) -> None:
        """From now on the node reaches nobody."""
        self._cuts.setdefault(node, []).append((at, math.inf))

    def healed(self, node: str, at: float) -> None:
        """It reaches the others again."""
        (since, _) = self._cuts[node].pop()
        self._cuts[node].append((since, at))

    def feed(self, record: Record) -> None:
        """Any record of a worker."""
        world = self._worlds.setdefault(record["id"], World(record["id"]))
        if record["what"] == "joined":
            self._joined(world, record)
        else:
            if record["what"] == "step":
                self._step(world, record)
            self._acted(world, record)

    def settle(self) -> None:
        """Everything that was written before the last ``feed`` is known."""
        for world in self._worlds.values():
            if world.begun is not None and not world.settled:
                if sorted(world.members) != list(range(world.size)):
                    text = f"a world of {world.size} works with ranks {sorted(world.members)}"
                    self._accuse("ranks", text, world.begun, world)
                self._check_rounds(world, world.begun)
                world.settled = True
        for old in list(self._worlds)[:-_REMEMBERED]:
            del self._worlds[old]

    def _joined(self, world: World, record: Record) -> None:
        rank, at = record["rank"], record["t"]
        world.sizes.add(record["size"])
        world.rounds.add(record["round"])
        for kind, told in (("sizes", world.sizes), ("rounds", world.rounds)):
            if len(told) > 1:
                self._accuse(kind, f"workers of one store were told {kind} {sorted(told)}", at, world)
        if rank in world.members:
            self._accuse("ranks", f"rank {rank} is that of {_who(world.members[rank])} and {_who(record)}", at, world)
        world.members.setdefault(rank, record)
        if world.begun is not None and at > world.begun:
            text = f"{_who(record)} has come into the store of a world that works already: it is not fresh"
            self._accuse("store", text, at, world)

    def _step(self, world: World, record: Record) -> None:
        self.steps += 1
        self.worked += world.begun is None
        if world.begun is None or (record["step"] == 0 and record["t0"] < world.begun):
            world.begun = record["t0"]
        world.steps.setdefault(record["rank"], deque(maxlen=20)).append(record["t0"])

    def _acted(self, world: World, record: Record) -> None:
        if world.last is None or record["t"] > world.last["t"]:
            world.last = record
        for other in self._worlds.values():
            if other is not world and other.begun is not None and world.begun is not None:
                old, new = (world, other) if world.begun < other.begun else (other, world)
                self._compare(old, new, new.begun or 0.0)

    def _compare(self, old: World, new: World, begun: float) -> None:
        """``new`` has begun later: from then on nobody of ``old`` acts."""
        last = old.last
        if last is None or last["t"] <= begun:
            return
        late = last["t"] - begun
        kind = f"late_{last['what']}"
        text = f"{_who(last)} ended the {last['what']} of an old world {late:.3f} s after"
        if last["what"] == "step" and last["t0"] > begun:
            kind, text = "two_worlds", f"{_who(last)} began a step of an old world {last['t0'] - begun:.3f} s after"
        elif last["what"] == "step" and self._was_cut_off(last, begun):
            self.excused.add(old.id)
            return
        text += f" the first step of a new world of {new.size}"
        self._accuse(kind, text, last["t"], old, act=dict(last), new_world=_members(new), late_s=round(late, 3))

    def _was_cut_off(self, act: Record, begun: float) -> bool:
        """When the new world began, and until shortly before that step came to its end."""
        return any(
            since < begun < until and act["t"] <= until + self._heard_s
            for since, until in self._cuts.get(act["node"], ())
        )

    def _check_rounds(self, world: World, begun: float) -> None:
        """Later worlds have higher rounds."""
        for other in self._worlds.values():
            if other.settled and other.begun is not None and other.rounds and world.rounds:
                one, two = max(world.rounds), max(other.rounds)
                if one == two or (one < two) != (begun < other.begun):
                    text = f"round {one} began at {begun:.3f}, round {two} at {other.begun:.3f}"
                    self._accuse("rounds", text, begun, world)

    def _accuse(self, kind: str, text: str, at: float, world: World, **evidence: Any) -> None:
        """Once for each world and kind."""
        if (kind, world.id) not in self._accused:
            self._accused.add((kind, world.id))
            shown = {"world": world.id, "members": _members(world)}
            self.violations.append(Violation(kind, text, at, shown | evidence))


def _members(world: World) -> dict[str, str]:
    return {str(rank): _who(record) for rank, record in sorted(world.members.items())}


def _who(record: Record) -> str:
    return f"{record['node']} (pid {record['pid']})"
