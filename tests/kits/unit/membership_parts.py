"""The parts of ``membership_world``: a node as others see it, a leader, and copies of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kits.unit.many_worlds import shallow
from rdzv_plugins.elastic.keys import Assignment, Member, Round
from rdzv_plugins.elastic.leading.claims import Claims
from rdzv_plugins.elastic.leading.kept_round import KeptRound
from rdzv_plugins.elastic.leading.left_out import LeftOut
from rdzv_plugins.elastic.leading.membership import Membership
from rdzv_plugins.elastic.leading.roster import Roster

Mode = Literal["off", "joining", "working", "left", "dead"]
Told = Round | Assignment | int | None
"""A round, an assignment, the round in which a node was done and has left, or that the assignment has gone."""


@dataclass
class Node:
    """One agent, as far as others can see it."""

    me: Member
    mode: Mode = "off"
    cut: bool = False
    """Its session has ended and it has no other yet."""
    walled: bool = False
    """It cannot dial the workers' store of any other node."""
    stuck: bool = False
    """It lives and does nothing."""
    lingers: bool = False
    """Its process is gone, and the service does not know it yet."""
    round: int = 0
    declared: Round = field(default_factory=Round)
    place: Assignment | None = None
    finishing: int = 0
    newest: int = 0
    """The newest round of which it has ever heard."""
    works_at: Assignment | None = None
    """Its place in its round."""
    kept: Assignment | None = None
    """The same when its session ended, if it may have it still."""
    said: list[Member] = field(default_factory=list)
    """In this session, oldest first: what may come late."""
    of_all: list[Told] = field(default_factory=list)
    of_own: list[Told] = field(default_factory=list)
    """What the service has sent, by watch, and the node has not read."""

    @property
    def name(self) -> str:
        return self.me.node_id

    @property
    def lives(self) -> bool:
        return self.mode in ("joining", "working") and not self.cut

    def copy(self) -> Node:
        twin = shallow(self)
        twin.said, twin.of_all, twin.of_own = self.said.copy(), self.of_all.copy(), self.of_own.copy()
        return twin


@dataclass
class Lead:
    """A node's leader."""

    node: str
    machine: Membership
    inbox: list[tuple[str, Member | None]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    """Whom it has seen go since it began the newest round."""
    proved: set[str] = field(default_factory=set)
    """Whose process it knows to be gone, before the service does."""

    def copy(self) -> Lead:
        return Lead(self.node, _twin(self.machine), self.inbox.copy(), self.gone.copy(), self.proved.copy())


_PARTS = (Membership, Roster, Claims, LeftOut, KeptRound)
_CHANGE = frozenset((*_PARTS, dict, list, set))
"""What changes, and is not shared by copies."""


def _twin(value: Any) -> Any:
    """A copy that shares only what never changes."""
    kind = type(value)
    if kind is dict and value:
        return {k: _twin(v) if type(v) in _CHANGE else v for k, v in value.items()}
    if kind in _PARTS:
        twin = shallow(value)
        vars(twin).update([(k, _twin(v)) for k, v in vars(value).items() if type(v) in _CHANGE])
        return twin
    return value.copy() if kind in _CHANGE else value
