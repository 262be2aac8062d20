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
TAKES_AWAY = ("kill_agent", "term_agent", "stop_agent", "cut")
"""Those for which a node is missing."""

LONG = "long"
_LENGTHS: Mapping[str, tuple[float, float]] = {"short": (0.2, 0.6), "near": (0.8, 1.4), LONG: (1.5, 3.0)}
"""In times to live, of what is to be compared with that."""
_SECONDS: Mapping[str, tuple[float, float]] = {
    "kill_agent": (0, 3),
    "term_agent": (0, 3),
    "stop_worker": (1, 10),
    "kill_worker": (0, 0),
}
"""Of all others."""
_OUTAGE_S = 30.0
"""The service comes back long before a job gives it up."""


@dataclass(frozen=True)
class Fault:
    """One of them. Times in seconds."""

    kind: str
    target: str
    pause: float
    """Before it happens."""
    length: str
    """``short`` and ``long`` for the time to live, or ``near`` it; empty for what is not to be compared with it."""
    lasts: float
    """Until it is over: the link is whole, the process goes on, a new agent takes the place of the old."""
    waits: bool
    """It is over that long after the others have gone on without this node."""
    hurries: bool
    """The next one hits the round that this one has begun."""

    @property
    def name(self) -> str:
        """By which times to recover are put together."""
        return f"{self.kind}_{self.length}" if self.length else self.kind

    def __str__(self) -> str:
        words = [self.kind, self.target, self.length, f"{self.lasts:.1f} s" if self.lasts else ""]
        words += ["after the others are back" if self.waits else "", "and the next one" if self.hurries else ""]
        return " ".join(filter(None, words))


def faults(
    seed: int, ttl: float, kinds: Sequence[str], nodes: Sequence[str], services: Sequence[str]
) -> Iterator[Fault]:
    """For ever; of these ``kinds``, to ``nodes`` and to the servers or members of the service."""
    dice = random.Random(seed)
    while True:
        kind = dice.choices(kinds, [KINDS[each] for each in kinds])[0]
        of_service = kind.endswith("_service")
        target = dice.choice(services if of_service else nodes)
        length = "" if kind in _SECONDS else dice.choice(("short", "near", LONG, LONG))
        lasts = dice.uniform(*_SECONDS[kind]) if not length else dice.uniform(*_LENGTHS[length]) * ttl
        waits = kind in TAKES_AWAY and length in ("", LONG) and dice.random() < 0.5
        hurries = dice.random() < 0.3
        pause = round(dice.uniform(0.5, 3), 1)
        lasts = round(min(lasts, _OUTAGE_S) if of_service else lasts, 1)
        yield Fault(kind, target, pause, length, lasts, waits, hurries)
