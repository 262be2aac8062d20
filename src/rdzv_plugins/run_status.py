"""What can be known of a run from outside: the answer of a backend to ``rdzv status``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NodeStatus:
    """A node of a run's newest round."""

    rank: int
    host: str
    pid: int
    workers: int | None = None
    """The number of the node's workers; None if it cannot be known."""
    address: str = ""
    there: bool = True
    """True if the node still takes part, as far as that is known."""
    domain: str = ""
    """The name that it shares with nodes near it; empty if nothing is known."""


@dataclass(frozen=True)
class RunStatus:
    """A run's newest round, who is in it, and what it is waiting for."""

    number: int = 0
    """The number of the newest round; 0 before the first."""
    state: Literal["none", "waiting", "complete", "over", "failed", "ended"] = "none"
    """``waiting``: nodes are still to come; ``over``: they are rejoining; ``failed``, ``ended``: no round follows."""
    reason: str = ""
    """Why it is in that state, as a sentence."""
    progress: str = ""
    """What is or was last being waited for, as a sentence."""
    members: int | None = None
    """How many nodes take part, including those that wait; None if it cannot be known."""
    leader: str = ""
    """The node that leads; empty if none does, or if it is not known."""
    nodes: tuple[NodeStatus, ...] = ()
    """The nodes of the round, by rank."""
    store: str = ""
    """Address and port of the round's workers' store; empty while there is none."""
    store_is_here: bool = False
    """True if a loopback address in ``store`` is known to be one of this machine."""
    store_kind: str = ""
    """The option ``store`` of the job; ``torch``: that store has no statistics. Empty: not known."""
