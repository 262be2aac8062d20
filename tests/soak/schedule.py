"""Which faults happen, in which order: a function of the seed alone, whatever the job makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

KINDS: Mapping[str, int] = {
    "kill_agent": 4,
    "term_agent": 2,
    "kill_worker": 3,
    "stop_agent": 4,
    "stop_worker": 2,
    "cut": 4,
    "kill_service": 3,
    "stop_service": 3,
}
"""What happens to a node, or to a server or member of the service; and how often beside the others."""
LASTING = ("stop_agent", "cut", "kill_service", "stop_service")
"""Those that are over after a time that is to be compared with the time to live."""
TAKES_AWAY = ("kill_agent", "term_agent", "stop_agent", "cut")
"""Those for which a node may be missing."""

LONG = "long"
_LENGTHS: Mapping[str, tuple[float, float]] = {"short": (0.2, 0.6), "near": (0.8, 1.4), LONG: (1.5, 3.0)}
"""In times to live."""
_OUTAGE_S = 30.0
"""The service comes back long before a job gives it up."""


@dataclass(frozen=True)
class Fault:
    """One of them. Times in seconds."""

    kind: str
    target: str
    after: float
    """Since the burst has begun."""
    length: str
    """``short`` and ``long`` for the time to live, or ``near`` it; empty for what is not to be compared with it."""
    lasts: float
    """Until it is over: the link is whole, the process goes on, a new agent takes the place of the old."""
    waits: bool
    """It is over that long after the others have gone on without this node."""

    def __str__(self) -> str:
        words = [self.kind, self.target, self.length, f"{self.lasts:.1f} s" if self.lasts else ""]
        words += ["after the others are back" if self.waits else "", f"at {self.after:.2f} s" if self.after else ""]
        return " ".join(filter(None, words))


@dataclass(frozen=True)
class Burst:
    """Faults that happen together, after ``pause`` seconds of work."""

    number: int
    pause: float
    faults: tuple[Fault, ...]

    @property
    def kind(self) -> str:
        """By which times to recover are put together."""
        if len(self.faults) > 1:
            return "several"
        (fault,) = self.faults
        return f"{fault.kind}_{fault.length}" if fault.length else fault.kind

    def __str__(self) -> str:
        return " + ".join(map(str, self.faults))


@dataclass(frozen=True)
class Terms:
    """What a schedule has to know of the job."""

    nodes: Sequence[str]
    services: Sequence[str]
    """Servers or members; at most one of them is away at a time."""
    min_nodes: int
    """So many are always left."""
    ttl: float
    kinds: Sequence[str]
    """Those that may happen."""


def bursts(seed: int, terms: Terms) -> Iterator[Burst]:
    """For ever."""
    dice = random.Random(seed)
    number = 0
    while True:
        faults: list[Fault] = []
        for _ in range(1 if dice.random() < 0.7 else dice.choice((2, 2, 3))):
            fault = _fault(dice, terms, bool(faults))
            if _goes_with(fault, faults, terms):
                faults.append(fault)
        pause = round(dice.uniform(0.5, 3), 1)
        if faults:
            number += 1
            yield Burst(number, pause, tuple(faults))


def _fault(dice: random.Random, terms: Terms, later: bool) -> Fault:
    """Any; one that comes ``later`` is to hit the round that an earlier one has begun."""
    kind = dice.choices(terms.kinds, [KINDS[each] for each in terms.kinds])[0]
    of_service = kind.endswith("_service")
    target = dice.choice(terms.services if of_service else terms.nodes)
    after = round(dice.uniform(0, dice.choice((0.8, 3))), 2) if later else 0.0
    length = dice.choice(("short", "near", LONG, LONG)) if kind in LASTING else ""
    if length:
        lasts = dice.uniform(*_LENGTHS[length]) * terms.ttl
    else:
        lasts = dice.uniform(*{"stop_worker": (1, 10), "kill_worker": (0, 0)}.get(kind, (0, 3)))
    waits = kind in TAKES_AWAY and length in ("", LONG) and dice.random() < 0.5
    return Fault(kind, target, after, length, round(min(lasts, _OUTAGE_S) if of_service else lasts, 1), waits)


def _goes_with(fault: Fault, before: Sequence[Fault], terms: Terms) -> bool:
    taken = {each.target for each in before}
    if fault.target in terms.services:
        return taken.isdisjoint(terms.services)
    away = {each.target for each in (*before, fault) if each.kind in TAKES_AWAY}
    return fault.target not in taken and len(terms.nodes) - len(away) >= terms.min_nodes
