"""What a handler sees of its rounds, for whoever keeps a timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class RoundEvent:
    """One thing that has happened to a round, as this node sees it: it is told when it happens, and not later.

    ``placed``: this node has been told its rank. ``served``: it serves the workers' store; told before the others hear
    of the store. ``reached``: it can dial that store; told before the others hear of it. ``complete``: every node of
    the round has joined and reached the store. ``over``: the round does not go on.
    """

    kind: Literal["placed", "served", "reached", "complete", "over"]
    round: int
    """Its number, from 1: the same on all nodes."""
    rank: int | None = None
    """This node's rank in it, where it is known."""
    world: int | None = None
    """The number of its nodes, where it is known."""
    reason: str = ""
    """Of ``over``: why, a sentence."""
    cause: Literal["", "lost", "asked", "came"] = ""
    """Of ``over``: a node was lost, a node asked for a new round, or a node has come."""


TellEvent: TypeAlias = Callable[[RoundEvent], None]
"""Returns at once, raises nothing; any thread may call it."""
