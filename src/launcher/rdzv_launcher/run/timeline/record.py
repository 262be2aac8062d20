"""The form of a timeline, as written by agents and read by ``rdzv timeline``. No I/O.

A line is a JSON object. ``BASE`` are the fields that every line has; an event may have further ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
"""The form's version: grows when readers of the previous one would misread it, not with new events or fields."""
SUFFIX = ".jsonl"
BASE = ("v", "event", "mono", "wall", "run", "node", "host", "agent", "round", "phase", "cause")

PHASES: Mapping[str, str] = {
    "opened": "opening",
    "joined": "joining",
    "placed": "connecting",
    "reached": "completing",
    "complete": "starting",
    "started": "working",
    "failed": "ending",
    "hung": "ending",
    "lost": "ending",
    "over": "ending",
    "stopping": "stopping",
    "stopped": "deciding",
    "asked": "deciding",
    "delayed": "delaying",
    "done": "waiting",
    "staying": "waiting",
    "leaving": "leaving",
    "left": "leaving",
    "ended": "ended",
}
"""The phase that a node is in after an event; after any other event the phase is unchanged."""
INTERRUPTING = frozenset({"failed", "hung", "lost", "asked", "over", "stopping", "leaving"})
"""The events that show that a round does not go on."""


@dataclass(frozen=True)
class Record:
    """One event. Times are in seconds."""

    event: str
    mono: float
    """The time by the monotonic clock, which all agents of one machine share."""
    wall: float
    """The time since the epoch, by the machine's clock, which may be wrong, and may be set meanwhile."""
    run: str
    node: int | None
    """The node's rank, once it has one."""
    host: str
    agent: str
    """Unique to one agent process."""
    round: int
    """The newest round that the node had heard of; 0 before the first."""
    phase: str
    """What the node does from now on."""
    cause: str = ""
    """Why, in a sentence; empty if there is nothing to say."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is known about this event."""

    def line(self) -> bytes:
        """The event as a line, including the line end."""
        fields = {"v": VERSION, **{name: getattr(self, name) for name in BASE[1:]}}
        fields |= {"mono": round(self.mono, 6), "wall": round(self.wall, 6), **self.facts}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


_TYPES: Mapping[str, tuple[type, ...]] = {
    "event": (str,),
    "mono": (int, float),
    "wall": (int, float),
    "run": (str,),
    "node": (int, type(None)),
    "host": (str,),
    "agent": (str,),
    "round": (int,),
    "phase": (str,),
    "cause": (str,),
}
_MOST_S = 1e12


def parse(line: bytes) -> Record:
    """Read an event from a line. Raises ``ValueError``, saying what is wrong."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(data, dict) or "v" not in data:
        raise ValueError("it is no event of a timeline")
    if data["v"] != VERSION:
        raise ValueError(f"it is of version {str(data['v'])[:20]}, and this rdzv reads version {VERSION}")
    for name, types in _TYPES.items():
        value = data.get(name)
        if type(value) not in types or (isinstance(value, int | float) and not -_MOST_S < value < _MOST_S):
            raise ValueError(f"it has no {name!r} that is one")
    facts = {name: value for name, value in data.items() if name not in BASE and _is_fact(name, value)}
    return Record(**{name: data[name] for name in _TYPES}, facts=facts)


def _is_fact(name: str, value: object) -> bool:
    """Whether it is one value, or the workers' process ids by rank: nothing else is written."""
    if name == "workers" and isinstance(value, dict):
        return all(type(pid) is int for pid in value.values())
    return value is None or isinstance(value, str | int | float)
