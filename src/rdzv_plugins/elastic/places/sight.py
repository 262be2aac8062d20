"""Which of several places a node is to join at, from what it sees of each. No clock, no sockets.

This only brings the nodes together: whether those who meet may form a round is decided by ``leading.quorum``. The first
round has none before it: where it is begun is claimed at more than half of the places, and remembered there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Sight:
    """What a node sees of one place."""

    answers: bool = False
    refused: bool = False
    """Its host says that nobody listens."""
    tried: bool = False
    """Somebody has answered there, or has not in time."""
    round: int = 0
    """The newest round that was declared there."""
    works: bool = False
    """That round is complete."""
    members: int = 0
    born: int = -1
    """The place of which it is remembered here that the first round is begun there."""
    others: str = ""
    """A list of places that is not this node's: it was remembered here by who was given it."""
    begun: bool = False
    """It is remembered here that there was a round."""


@dataclass(frozen=True)
class Choice:
    """To ``join`` at a place, to ``claim`` the first round for it before that, or to ``wait``, and for what."""

    step: Literal["join", "claim", "wait"]
    place: int = -1
    why: str = ""


def choose(sights: Sequence[Sight], *, knows: bool) -> Choice:
    """Where to join; ``knows``: this node was in a round, which it brings along."""
    answering = [at for at, sight in enumerate(sights) if sight.answers]
    if not answering:
        return Choice("wait", why="none of the places answers")
    served = [at for at in answering if sights[at].round]
    if served or knows:
        return Choice("join", _best(sights, served or answering))
    begun = [at for at in answering if sights[at].begun]
    if begun:
        return Choice("wait", why="the job has begun, and the place that serves it does not answer")
    return _first(sights, answering)


def is_better(sights: Sequence[Sight], here: int) -> int | None:
    """The place to go to from ``here``, where this node is a member; None to stay.

    A newer round works there: this one was replaced. Or none works here, and more nodes are there.
    """
    mine = sights[here]
    if not mine.answers:
        return None
    newer = [at for at, sight in enumerate(sights) if sight.answers and sight.works and sight.round > mine.round]
    if newer:
        return _best(sights, newer)
    if mine.works:
        return None
    best = _best(sights, [at for at, sight in enumerate(sights) if sight.answers])
    return best if best != here else None


def _best(sights: Sequence[Sight], of: Sequence[int]) -> int:
    return max(of, key=lambda at: (sights[at].round, sights[at].members, -at))


def _first(sights: Sequence[Sight], answering: Sequence[int]) -> Choice:
    """There was no round yet, as far as those know that answer."""
    needed = len(sights) // 2 + 1
    claims = Counter(sights[at].born for at in answering if sights[at].born >= 0)
    for place, votes in claims.items():
        if votes >= needed:
            if sights[place].answers:
                return Choice("join", place)
            return Choice("wait", place, "the first round is begun there, and it does not answer")
    first = claims.most_common(1)[0][0] if claims else answering[0]
    if len(answering) < needed:
        return Choice("wait", why=f"before the first round more than half of the places have to answer: {needed}")
    silent = [at for at in range(first) if not sights[at].answers and not sights[at].refused]
    if silent and not claims:
        return Choice("wait", silent[0], "it may serve the job already, and neither answers nor refuses")
    return Choice("claim", first, "more than half of the places have to remember that the first round is begun there")
