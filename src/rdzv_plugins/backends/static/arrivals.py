"""What static nodes write into a round: who has arrived, that all have, why it is over.

Needs no torch, as others read it, too.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Struct, to_builtins

from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.rounds.ends import parse_outcome
from rdzv_plugins.runtime import SYSTEM, Runtime

_NAMED = 16
"""The most ranks to name."""


class Arrival(Struct, frozen=True):
    """One node's entry into a round."""

    incarnation: str
    """Unique to one agent process."""
    host: str
    pid: int
    machine: str = ""
    """Shared by all processes that see each other's pids, and by no others; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})"

    def has_ended(self, runtime: Runtime = SYSTEM) -> bool:
        """Whether this machine knows that the process has ended. False if it is not one of this machine's."""
        return self.machine != "" and self.machine == runtime.pid_space() and runtime.has_ended(self.pid)


def this_agent(runtime: Runtime = SYSTEM) -> Arrival:
    """This process."""
    return Arrival(runtime.uuid4().hex, runtime.gethostname(), runtime.getpid(), runtime.pid_space())


class Missing(Struct, frozen=True):
    """The ranks that are not in a round."""

    never: tuple[int, ...]
    """They have not arrived."""
    left: tuple[int, ...] = ()
    """They have arrived, and left again."""

    def __contains__(self, rank: int) -> bool:
        return rank in self.never or rank in self.left

    def __len__(self) -> int:
        return len(self.never) + len(self.left)

    def __str__(self) -> str:
        never = f"missing: node rank {some(self.never, _NAMED)}" if self.never else ""
        left = f"node rank {some(self.left, _NAMED)} came, and has left again" if self.left else ""
        return "; ".join(filter(None, (never, left)))


class Over(Struct, frozen=True):
    """Why a round is over: a node has asked for the next one, or was lost."""

    by: str
    """The node, in words."""
    lost: str = ""
    """Why the node was lost; empty if it has asked for the next round."""
    incarnation: str = ""
    """The agent that was lost."""

    def __str__(self) -> str:
        return f"{self.by} was lost: {self.lost}" if self.lost else f"{self.by} has asked for a new round"

    @property
    def text(self) -> str:
        """As the value of its key."""
        return json.dumps(to_builtins(self))


def parse_over(text: bytes) -> Over:
    """An ``Over`` from the value of its key. What is none of ours counts as a question for a new round."""
    try:
        over = json.loads(text)
        return Over(*(printable(str(over[name])) for name in ("by", "lost", "incarnation")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return Over(printable(text.decode(errors="backslashreplace")))


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
