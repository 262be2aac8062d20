"""What static nodes write into a round: who has arrived, and that all have. Needs no torch, as others read it, too."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct

from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.rounds.ends import parse_outcome


class Arrival(Struct, frozen=True):
    """One node's entry into a round."""

    incarnation: str
    """Unique to one agent process."""
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})"


class Go(Struct, frozen=True):
    """A complete round: who is in it, and where its workers' store is. Alternatively, the end of the job."""

    members: tuple[str, ...] = ()
    """The incarnations, by node rank."""
    master_addr: str = ""
    master_port: int = 0
    ended: Outcome | None = None


def parse_go(text: bytes) -> Go:
    """Parse a ``Go`` from its JSON form."""
    data: dict[str, Any] = json.loads(text)
    ended = parse_outcome(json.dumps(data["ended"])) if data["ended"] else None
    return Go(tuple(data["members"]), data["master_addr"], data["master_port"], ended)
