"""What workers have written down must fit together: one round at a time, each whole, each in a store of its own.

Records come in any order between nodes, as they are read; times are of one clock. No processes, no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Violation:
    """Something that must not be, and what shows it."""

    kind: str
    text: str
    at: float
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Round:
    """The workers of one, as far as they have been heard of."""

    number: int
    members: dict[int, Record] = field(default_factory=dict)
    """By rank: that of the first worker who had it."""
    size: int = 0
    begun: float = math.inf
    """When the first of its workers began its first step: all had joined before."""
    steps: dict[int, list[float]] = field(default_factory=dict)
    """By rank: when the last steps that were completed began."""
    last: Record | None = None
    """The last step to be completed, or checkpoint to be written."""

    def whole(self) -> bool:
        return sorted(self.members) == list(range(self.size))

    def worked_since(self, moment: float) -> bool:
        """Each of its ranks has begun and completed two steps since then."""
        counts = [sum(begun > moment for begun in self.steps.get(rank, ())) for rank in self.members]
        return self.whole() and min(counts, default=0) >= 2


class Checker:
    """Feed it with records and call ``settle`` when all were read that had been written; it collects ``violations``.

    The nodes that are cut off are told to it (``cut``, ``healed``). Such a node cannot know that others have begun
    a new round, and its workers go on, since it may as well be the service that does not answer. A step that they
    had begun before may then come to its end: for ``heard_s`` seconds after the network is whole again, at most. A
    step that is begun, or a checkpoint, is a violation there, too (docs/internals/fencing.md).
    """

    def __init__(self, heard_s: float = 0.0) -> None:
        self._heard_s = heard_s
        self._cuts: dict[str, list[tuple[float, float]]] = {}
        self.excused: set[int] = set()
        """Rounds of which such a step came to its end."""
        self.violations: list[Violation] = []
        self.steps = 0
        self._rounds: dict[int, Round] = {}
        self._accused: set[tuple[str, int]] = set()

    @property
    def worked(self) -> int:
        """Rounds in which a step was completed."""
        return sum(each.last is not None for each in self._rounds.values())

    @property
    def newest(self) -> Round | None:
        """The round that has begun last."""
        begun = [each for each in self._rounds.values() if each.begun < math.inf]
        return max(begun, key=lambda each: each.begun, default=None)

    def cut(self, node: str, at: float) -> None:
        """From now on the node reaches nobody."""
        self._cuts.setdefault(node, []).append((at, math.inf))

    def healed(self, node: str, at: float) -> None:
        """It reaches the others again."""
        (since, _) = self._cuts[node].pop()
        self._cuts[node].append((since, at))

    def feed(self, record: Record) -> None:
        """Any record of a worker."""
        round_ = self._rounds.setdefault(record["round"], Round(record["round"]))
        if record["what"] == "joined":
            self._joined(round_, record)
            return
        if record["what"] == "step":
            self.steps += 1
            if record["step"] == 0:
                round_.begun = min(round_.begun, record["t0"])
            round_.steps[record["rank"]] = [*round_.steps.get(record["rank"], [])[-20:], record["t0"]]
        if round_.last is None or record["t"] > round_.last["t"]:
            round_.last = record

    def settle(self) -> None:
        """Everything that was written before the last ``feed`` is known."""
        begun = sorted((each for each in self._rounds.values() if each.begun < math.inf), key=lambda each: each.begun)
        for each in begun:
            if not each.whole():
                text = f"a round of {each.size} works with ranks {sorted(each.members)}"
                self._accuse("ranks", text, each.begun, each)
        for old, new in pairwise(begun):
            if old.number > new.number:
                text = f"round {new.number} began at {new.begun:.3f}, round {old.number} at {old.begun:.3f}"
                self._accuse("rounds", text, new.begun, new)
            self._compare(old, new)

    def _joined(self, round_: Round, record: Record) -> None:
        rank, at = record["rank"], record["t"]
        round_.size = round_.size or record["size"]
        if round_.size != record["size"]:
            self._accuse("sizes", f"workers were told sizes {round_.size} and {record['size']}", at, round_)
        if rank in round_.members:
            text = f"rank {rank} is that of {_who(round_.members[rank])} and {_who(record)}"
            self._accuse("ranks", text, at, round_)
        round_.members.setdefault(rank, record)
        if at > round_.begun:
            text = f"{_who(record)} has come into the store of a round that works already: it is not fresh"
            self._accuse("store", text, at, round_)

    def _compare(self, old: Round, new: Round) -> None:
        """``new`` has begun later: from then on nobody of ``old`` acts."""
        last, begun = old.last, new.begun
        if last is None or last["t"] <= begun:
            return
        late = last["t"] - begun
        kind = f"late_{last['what']}"
        text = f"{_who(last)} ended the {last['what']} of round {old.number} {late:.3f} s after"
        if last["what"] == "step" and last["t0"] > begun:
            kind, text = "two_worlds", f"{_who(last)} began a step of an old round {last['t0'] - begun:.3f} s after"
        elif last["what"] == "step" and self._was_cut_off(last, begun):
            self.excused.add(old.number)
            return
        text += f" the first step of round {new.number}"
        self._accuse(kind, text, last["t"], old, act=dict(last), next=_members(new), late_s=round(late, 3))

    def _was_cut_off(self, act: Record, begun: float) -> bool:
        """When the new round began, and until shortly before that step came to its end."""
        return any(
            since < begun < until and act["t"] <= until + self._heard_s
            for since, until in self._cuts.get(act["node"], ())
        )

    def _accuse(self, kind: str, text: str, at: float, round_: Round, **evidence: Any) -> None:
        """Once for each round and kind."""
        if (kind, round_.number) not in self._accused:
            self._accused.add((kind, round_.number))
            shown = {"round": round_.number, "members": _members(round_)}
            self.violations.append(Violation(kind, text, at, shown | evidence))


def _members(round_: Round) -> dict[str, str]:
    return {str(rank): _who(record) for rank, record in sorted(round_.members.items())}


def _who(record: Record) -> str:
    return f"{record['node']} (pid {record['pid']})"
