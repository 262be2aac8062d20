"""What may keep a round from being begun, and not every job has: one interface for quorum, recovery and preflight.

The state machine has a list of gates. It tells each of them what it hears and does (``observe``), asks it with each
batch of events whether it is too early for a round (``check``), and shows it the nodes of which one could be begun
(``review``, ``objection``). The list is empty in a plain job once its first round is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rdzv_plugins.elastic.coordinator.placement import PreviousAssignment
from rdzv_plugins.elastic.keys import Assignment, Member, Round

Places = Mapping[str, Assignment]
"""The places in a round, by node, in the order of ranks."""


class MemberHeard(NamedTuple):
    """A member has come, or says something new about itself, or leaves."""

    member: Member
    takes_part: bool  # it neither leaves, nor was refused or left out


class MemberGone(NamedTuple):
    """A member is lost, or leaves."""

    member: Member
    done: bool  # because its workers have succeeded


class ProvedGone(NamedTuple):
    """The process of a node is gone. It is a member here, or was until its end, which may come later."""

    node: str


class RoundPlanned(NamedTuple):
    """A round of these nodes is being formed. Nobody serves its store yet."""

    places: Places


class RoundDeclared(NamedTuple):
    """``places`` are those of the newest complete round."""

    round: Round
    places: Places


class FormingTimedOut(NamedTuple):
    """Nodes that do not do their part are waited for no longer."""


GateEvent = MemberHeard | MemberGone | ProvedGone | RoundPlanned | RoundDeclared | FormingTimedOut


class Wait(NamedTuple):
    """It is too early to begin a round."""

    until: float
    gives_up: bool = False  # one that is being formed is given up


class ForgottenRound(NamedTuple):
    """A round that the service has forgotten, as its nodes tell of it."""

    number: int
    places: Places  # of the nodes that are back
    why_over: str  # empty if it is whole, and goes on


@dataclass
class Proposal:
    """A round that could be begun now. A gate may change the last four."""

    waiting: Collection[Member]
    members: Mapping[str, Member]
    declared: int  # the number of the newest declared round
    spares: int  # how many of those that wait it can do without
    former: PreviousAssignment
    unfit: Collection[str] = ()  # nodes without which it is formed, and which end none by coming
    notices: Collection[str] = ()  # what people should know about nodes
    fatal: str = ""  # why the job fails instead


class Gate:
    """A rule that not every job has. This one is none: nothing is in the way of any round. Not thread-safe."""

    @property
    def knows_of_round(self) -> bool:
        """Whether there was a round before, even if none was declared here."""
        return False

    @property
    def awaits(self) -> bool:
        """Whether nodes that have joined again still have something to do."""
        return False

    def observe(self, event: GateEvent, now: float) -> bool:
        """Take in what has happened. Returns whether the round being formed has to be given up for it."""
        return False

    def check(self, waiting: Collection[str], members: Collection[str], now: float) -> Wait | ForgottenRound | None:
        """Whether it is too early to begin a round; ``waiting``: those of the ``members`` that wait for one.

        Or what has become of a round that the service has forgotten, once that can be said.
        """

    def review(self, proposal: Proposal) -> None:
        """All that are waited for are there: change who is in the round, or fail it."""

    def objection(self, chosen: Collection[str], members: Collection[str]) -> str:
        """Why these nodes, out of the members that live, may not form a round; empty if they may."""
        return ""

    def facts(self) -> str:
        """What people are told instead of who has joined, while that is not what counts."""
        return ""
