"""What workers have written down must fit together: one world at a time, each whole, each in a store of its own.

Records come in any order between nodes, as they are read; times are of one clock. No processes, no files.
"""

from __future__ import annotations

import math
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
    rounds: set[str] = field(default_factory=set)
    begun: float | None = None
    """When the first of its workers began its first step: all had joined before."""
    steps: dict[int, int] = field(default_factory=dict)
    """Completed, by rank."""
    first_step: dict[int, list[float]] = field(default_factory=dict)
    """By rank: when the steps that were remembered began."""
    last: Record | None = None
    """The last step to be completed, or checkpoint to be written."""
    settled: bool = False

    @property
    def size(self) -> int:
        return max(self.sizes, default=0)

    def worked_since(self, moment: float) -> bool:
        """Each of its ranks has begun and completed two steps since then."""
        return len(self.members) == self.size > 0 and all(
            len([t0 for t0 in self.first_step.get(rank, ()) if t0 > moment]) >= 2 for rank in self.members
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
        self.agents: set[str] = set()
        """Tokens of those that have had a worker."""
        self.violations: list[Violation] = []
        self.worlds: dict[str, World] = {}
        self.worked = 0
        """Worlds in which a step was completed."""
        self.steps = 0
        self._job_began = 0.0
        self._accused: set[tuple[str, ...]] = set()

    @property
    def newest(self) -> World | None:
        """The world that has begun last."""
        begun = [world for world in self.worlds.values() if world.begun is not None]
        return max(begun, key=lambda world: world.begun or 0.0, default=None)

    def new_job(self, moment: float) -> None:
        """The job was started anew: what was before is gone, and its rounds count from 1 again."""
        self._job_began = moment

    def cut(self, node: str, at: float) -> None:
        """From now on the node reaches nobody."""
        self._cuts.setdefault(node, []).append((at, math.inf))

    def healed(self, node: str, at: float) -> None:
        """It reaches the others again."""
        (since, _) = self._cuts[node].pop()
        self._cuts[node].append((since, at))

    def feed(self, record: Record) -> None:
        """Any record of a worker."""
        if record["what"] == "joined":
            self._joined(record)
        elif record["what"] == "step":
            self._step(record)
        elif record["what"] == "saved":
            self._acted(self.worlds.setdefault(record["id"], World(record["id"])), record)

    def settle(self) -> None:
        """Everything that was written before the last ``feed`` is known."""
        for world in self.worlds.values():
            if world.begun is None or world.settled:
                continue
            if sorted(world.members) != list(range(world.size)):
                self._accuse(
                    "ranks", f"a world of {world.size} works with ranks {sorted(world.members)}", world.begun, world
                )
            self._check_rounds(world)
            world.settled = True
        for old in list(self.worlds)[:-_REMEMBERED]:
            del self.worlds[old]

    def _joined(self, record: Record) -> None:
        world = self.worlds.setdefault(record["id"], World(record["id"]))
        rank, size = record["rank"], record["size"]
        self.agents.add(record["agent"])
        world.sizes.add(size)
        if "rdzv_round" in record:
            world.rounds.add(str(record["rdzv_round"]))
        if len(world.sizes) > 1:
            self._accuse(
                "sizes", f"workers of one world were told sizes {sorted(world.sizes)}", record["t"], world, record
            )
        if len(world.rounds) > 1:
            self._accuse(
                "rounds", f"one store has workers of rounds {sorted(world.rounds)}", record["t"], world, record
            )
        if not 0 <= rank < size:
            self._accuse("ranks", f"rank {rank} in a world of {size}", record["t"], world, record)
        if record["holder"] or rank in world.members:
            holder = record["holder"] or _who(world.members[rank])
            self._accuse("ranks", f"rank {rank} is that of {holder} and of {_who(record)}", record["t"], world, record)
        world.members.setdefault(rank, record)
        if world.begun is not None and record["t"] > world.begun:
            text = f"{_who(record)} has come into the store of a world that works already: it is not fresh"
            self._accuse("store", text, record["t"], world, record)

    def _step(self, record: Record) -> None:
        self.steps += 1
        world = self.worlds.setdefault(record["id"], World(record["id"]))
        rank = record["rank"]
        first = world.begun is None
        self.worked += first
        if first or (record["step"] == 0 and record["t0"] < (world.begun or 0.0)):
            world.begun = record["t0"]
        world.steps[rank] = world.steps.get(rank, 0) + 1
        world.first_step.setdefault(rank, []).append(record["t0"])
        del world.first_step[rank][:-20]
        if rank in world.members and world.members[rank]["pid"] != record["pid"]:
            text = f"rank {rank} acts as {_who(world.members[rank])} and as {_who(record)}"
            self._accuse("ranks", text, record["t"], world, record)
        self._acted(world, record)

    def _acted(self, world: World, record: Record) -> None:
        if world.last is None or record["t"] > world.last["t"]:
            world.last = record
        for other in self.worlds.values():
            if other is not world and other.begun is not None and world.begun is not None:
                old, new = (world, other) if world.begun < other.begun else (other, world)
                self._compare(old, new)

    def _compare(self, old: World, new: World) -> None:
        """``new`` has begun later: from then on nobody of ``old`` acts."""
        last, begun = old.last, new.begun
        if last is None or begun is None or last["t"] <= begun:
            return
        late = last["t"] - begun
        what = "a step" if last["what"] == "step" else "a checkpoint"
        kind = f"late_{last['what']}"
        text = f"{_who(last)} completed {what} of an old world {late:.3f} s after"
        if last["what"] == "step" and last["t0"] > begun:
            kind = "two_worlds"
            text = f"two worlds at once: {_who(last)} began {what} of an old one {last['t0'] - begun:.3f} s after"
        elif last["what"] == "step" and self._was_cut_off(last, begun):
            self.excused.add(old.id)
            return
        text += f" the first step of a new world of {new.size}"
        evidence = {"act": dict(last), "new_world_began": begun, "new_world": _members(new), "late_s": round(late, 3)}
        self._accuse(kind, text, last["t"], old, evidence=evidence)

    def _was_cut_off(self, act: Record, begun: float) -> bool:
        """When the new world began, and until shortly before that step came to its end."""
        return any(
            since < begun < until and act["t"] <= until + self._heard_s
            for since, until in self._cuts.get(act["node"], ())
        )

    def _check_rounds(self, world: World) -> None:
        """Later worlds have higher rounds."""
        for other in self.worlds.values():
            if not other.settled or other.begun is None or not other.rounds or not world.rounds or world.begun is None:
                continue
            if min(other.begun, world.begun) < self._job_began:
                continue
            one, two = int(max(world.rounds)), int(max(other.rounds))
            if one == two or (one < two) != (world.begun < other.begun):
                text = f"round {one} began at {world.begun:.3f}, round {two} at {other.begun:.3f}"
                self._accuse("rounds", text, world.begun, world)

    def _accuse(
        self,
        kind: str,
        text: str,
        at: float,
        world: World,
        record: Record | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        """Once for each world and kind."""
        if (kind, world.id) in self._accused:
            return
        self._accused.add((kind, world.id))
        shown = {"world": world.id, "members": _members(world)} | ({"record": dict(record)} if record else {})
        self.violations.append(Violation(kind, text, at, shown | {**(evidence or {})}))


def _members(world: World) -> dict[str, str]:
    return {str(rank): _who(record) for rank, record in sorted(world.members.items())}


def _who(record: Record) -> str:
    return f"{record['node']} (pid {record['pid']})"
