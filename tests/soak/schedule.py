"""Which faults happen, in which order: a function of the seed alone, whatever the job makes of them.

The schedule follows which nodes it has sent away and called back, and never takes so many at a time that fewer than the
job's minimum are left.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

NODE_KINDS: Mapping[str, int] = {
    "kill_agent": 4,
    "term_agent": 2,
    "kill_worker": 3,
    "stop_agent": 4,
    "stop_worker": 2,
    "cut": 4,
    "slow": 2,
    "blind": 2,
    "leave": 1,
    "arrive": 4,
}
"""What happens to a node, and how often beside the others."""
SERVER_KINDS: Mapping[str, int] = {"kill_server": 2, "stop_server": 3}
MEMBER_KINDS: Mapping[str, int] = {"kill_member": 3, "stop_member": 3}
KINDS = (*NODE_KINDS, *SERVER_KINDS, *MEMBER_KINDS)

LASTING = ("stop_agent", "cut", "stop_server", "kill_server", "stop_member", "kill_member")
"""Those that are over after a time that is to be compared with the time to live."""
TAKES_AWAY = ("kill_agent", "term_agent", "leave", "stop_agent", "cut", "blind")
"""Those for which a node may be missing."""
RETURNS = ("kill_agent", "term_agent")

SHORT, NEAR, LONG = "short", "near", "long"
_LENGTHS: Mapping[str, tuple[float, float]] = {SHORT: (0.2, 0.6), NEAR: (0.8, 1.4), LONG: (1.5, 3.0)}
"""In times to live."""


@dataclass(frozen=True)
class Fault:
    """One of them. Times in seconds."""

    kind: str
    target: str
    after: float = 0.0
    """Since the burst has begun."""
    length: str = ""
    """``short`` and ``long`` for the time to live, or ``near`` it."""
    lasts: float = 0.0
    """Until it is over: the link is whole, the process goes on, a new agent takes the place of the old."""
    waits: bool = False
    """It is over that long after the others have gone on without this node."""
    again: float = 0.0
    """Not 0: the new agent in the old one's place gets the same signal so long after its first word."""
    delay: float = 0.0
    """Of a slow link, each way."""
    other: str = ""
    """The node that the new agent does not reach at first; it reaches all others."""

    def __str__(self) -> str:
        parts = [f"{self.kind} {self.target}", f"{self.length or 'for'} {self.lasts:.1f} s" if self.lasts else ""]
        parts += [
            "after the others are back" if self.waits else "",
            f"+{self.delay * 1000:.0f} ms" if self.delay else "",
        ]
        parts.append(f"does not reach {self.other}" if self.other else "")
        parts.append(f"again after {self.again:.1f} s" if self.again else "")
        return " ".join(filter(None, [*parts, f"at {self.after:.2f} s" if self.after else ""]))


@dataclass(frozen=True)
class Burst:
    """Faults that happen together, after ``pause`` seconds of work."""

    number: int
    pause: float
    faults: tuple[Fault, ...]
    start_s: Mapping[str, float] = field(default_factory=dict)
    """How long workers take to start from now on, by node."""

    @property
    def kind(self) -> str:
        """By which times to recover are put together."""
        if len(self.faults) > 1:
            return "several"
        (fault,) = self.faults
        return f"{fault.kind}_{fault.length}" if fault.length else fault.kind

    def __str__(self) -> str:
        slow = ", ".join(f"{node} {seconds:.1f} s" for node, seconds in self.start_s.items() if seconds)
        return " + ".join(map(str, self.faults)) + (f" (workers start in: {slow})" if slow else "")


@dataclass(frozen=True)
class Terms:
    """What a schedule has to know of the job. Times in seconds."""

    nodes: Sequence[str]
    min_nodes: int
    ttl: float
    reach: float
    """Within which a node has to reach the workers' store."""
    outage: float
    """For so long a job goes on without the service."""
    kinds: Sequence[str]
    """Those that may happen."""
    slow_starts: float = 0.15
    """How probable it is for a node, in each burst, that its workers take up to 6 s to start."""
    members: Sequence[str] = ()
    """Of the service's cluster; at most one at a time."""
    serving: str = ""
    """The node that serves the endpoint: what happens to it happens to the service."""


def bursts(seed: int, terms: Terms) -> Iterator[Burst]:
    """For ever."""
    dice = random.Random(seed)
    here = set(terms.nodes)
    number = 0
    while True:
        many = 1 if dice.random() < 0.7 else dice.choice((2, 2, 3))
        faults: list[Fault] = []
        for _ in range(many):
            fault = _fault(dice, terms, here, faults)
            if fault is not None:
                faults.append(fault)
        for fault in faults:
            if fault.kind == "leave":
                here.discard(fault.target)
            elif fault.kind == "arrive":
                here.add(fault.target)
        slow = {
            node: round(dice.uniform(1, 6), 1) if dice.random() < terms.slow_starts else 0.0 for node in terms.nodes
        }
        pause = round(dice.uniform(0.5, 3), 1)
        if faults:
            number += 1
            yield Burst(number, pause, tuple(faults), slow)


def _fault(dice: random.Random, terms: Terms, here: set[str], before: Sequence[Fault]) -> Fault | None:
    """One more; none if that which was drawn does not go together with those ``before`` it."""
    weights = {
        kind: weight for kind, weight in (NODE_KINDS | SERVER_KINDS | MEMBER_KINDS).items() if kind in terms.kinds
    }
    kind = dice.choices(list(weights), list(weights.values()))[0]
    after = (
        round(dice.uniform(0, dice.choice((0.8, 3))), 2) if before else 0.0
    )  # the first is to hit a round on its way
    length = dice.choice((SHORT, NEAR, LONG, LONG)) if kind in LASTING else ""
    lasts = round(dice.uniform(*_LENGTHS[length]) * terms.ttl, 1) if length else 0.0
    taken = {fault.target for fault in before}
    if kind in SERVER_KINDS:
        free = ["server"]
        lasts = min(lasts, round(terms.outage / 2, 1)) if terms.outage else lasts
    elif kind in MEMBER_KINDS:
        free = [] if taken & set(terms.members) else list(terms.members)
    elif kind == "arrive":
        free = [node for node in terms.nodes if node not in here]
    else:
        free = [node for node in terms.nodes if node in here]
    target = dice.choice(free) if free else ""
    away = {fault.target for fault in before if fault.kind in TAKES_AWAY}
    stay = len(here - away - {target}) >= terms.min_nodes
    serves = target == terms.serving and kind in TAKES_AWAY
    waits = kind in TAKES_AWAY and length in ("", LONG) and dice.random() < 0.5
    delay = round(dice.uniform(0.02, 0.2), 3) if kind == "slow" else 0.0
    again = 0.0
    if kind in RETURNS:
        lasts = round(dice.uniform(0, 3), 1)
        again = round(dice.uniform(0.1, 2), 1) if dice.random() < 0.3 else 0.0
    elif kind in ("stop_worker", "slow"):
        lasts = round(dice.uniform(1, 10), 1)
    if not target or target in taken or (kind in TAKES_AWAY and not stay) or (kind in ("leave", "blind") and serves):
        return None
    if serves:  # the others cannot go on without it
        waits, again = False, 0.0
        lasts = min(lasts, round(terms.outage / 2, 1)) if terms.outage else lasts
    other = ""
    if kind == "blind":
        lasts, waits = round(terms.reach + dice.uniform(0, 2) * terms.ttl, 1), True
        other = dice.choice([node for node in terms.nodes if node not in (target, terms.serving)])
    return Fault(kind, target, after, length, lasts, waits, again, delay, other)
