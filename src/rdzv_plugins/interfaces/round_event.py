"""Events of a handler's rounds, for the timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct


class RoundEvent(Struct, frozen=True):
    """Something that happened to a round, as this node sees it; reported at the moment when it happens.

    ``placed``: this node has been told its rank. ``served``: it serves the workers' store; reported before the others
    are told about the store. ``reached``: it can dial that store; reported before the others are told. ``complete``:
    every node of the round has joined and reached the store. ``over``: the round does not go on.
    """

    kind: Literal["placed", "served", "reached", "complete", "over"]
    round: int
    """The round's number, from 1; the same on all nodes."""
    rank: int | None = None
    """This node's rank in the round, if it is known."""
    world: int | None = None
    """The number of the round's nodes, if it is known."""
    reason: str = ""
    """Why the round is over, as a sentence; empty for other kinds."""
    cause: Literal["", "lost", "asked", "came"] = ""
    """Why the round is over: ``lost``, ``asked`` or ``came``; empty for other kinds.

    A node was lost, asked for a new round, or has come.
    """


TellEvent: TypeAlias = Callable[[RoundEvent], None]
"""Gets each event. Returns at once and raises nothing; any thread may call it."""
