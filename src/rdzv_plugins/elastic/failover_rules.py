"""Which of several endpoints a node should join at, judging by what it sees of each. No clock, no sockets.

This only brings the nodes together: ``coordinator.quorum`` decides whether those that meet may form a round. The first
round has none before it: where it begins is claimed at more than half of the endpoints, and recorded there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rdzv_plugins.plain_text import printable

_LONGEST_LIST = 512


@dataclass(frozen=True)
class EndpointStatus:
    """What a node sees of one endpoint."""

    answers: bool = False
    refused: bool = False  # whether its host says that nobody is listening
    tried: bool = False  # whether somebody has answered there, or has failed to in time
    round: int = 0  # the newest round that was declared there
    works: bool = False  # whether that round is complete
    members: int = 0
    claimed_at: int = -1  # the endpoint where the first round begins, as recorded here
    others: str = ""
    """A list of endpoints that differs from this node's, recorded here by a node that was given it."""
    initialized: bool = False  # whether it is recorded here that there was a round
    gone: bool = False  # whether the process that served here is proved gone: see ``EndpointMonitor``


@dataclass(frozen=True)
class Choice:
    """What to do: ``join`` at an endpoint, ``claim`` the first round for it first, or ``wait``, and for what."""

    step: Literal["join", "claim", "wait"]
    place: int = -1
    why: str = ""
    remembers: bool = False
    """It is to be joined for what it knows of rounds: if it no longer does, nothing was chosen."""
    first: bool = False  # it is to be joined because the first round begins there


def select_endpoint(statuses: Sequence[EndpointStatus], *, knows: bool) -> Choice:
    """Where to join; ``knows``: this node was in a complete round, which it brings along."""
    answering = [at for at, status in enumerate(statuses) if status.answers]
    if not answering:
        return Choice("wait", why="no endpoint answers")
    served = [at for at in answering if statuses[at].round]
    if served or knows:
        return Choice("join", _best(statuses, served or answering), remembers=not knows)
    initialized = [at for at in answering if statuses[at].initialized]
    if initialized:  # the others may have left the endpoint that served, and wait here for nodes that were in no round
        return Choice("join", _best(statuses, initialized), remembers=True)
    return _first(statuses, answering)


def better_endpoint(statuses: Sequence[EndpointStatus], here: int) -> int | None:
    """The endpoint to move to from ``here``, where this node is a member; None to stay.

    Either a newer round works there, so that this one was replaced, or none works here and more nodes are there.
    """
    mine = statuses[here]
    if not mine.answers:
        return None
    newer = [at for at, status in enumerate(statuses) if status.answers and status.works and status.round > mine.round]
    if newer:
        return _best(statuses, newer)
    if mine.works:
        return None
    best = _best(statuses, [at for at, status in enumerate(statuses) if status.answers])
    return best if best != here else None


def _best(statuses: Sequence[EndpointStatus], of: Sequence[int]) -> int:
    return max(of, key=lambda at: (statuses[at].round, statuses[at].members, -at))


def _first(statuses: Sequence[EndpointStatus], answering: Sequence[int]) -> Choice:
    """Choose where there was no round yet, as far as the answering endpoints know."""
    needed = len(statuses) // 2 + 1
    claims = Counter(statuses[at].claimed_at for at in answering if statuses[at].claimed_at >= 0)
    for place, votes in claims.items():
        if votes >= needed:
            if statuses[place].answers:
                return Choice("join", place, first=True)
            return Choice("wait", place, "the first round begins there, and it does not answer")
    first = claims.most_common(1)[0][0] if claims else answering[0]
    if len(answering) < needed:
        return Choice("wait", why=f"before the first round more than half of the endpoints must answer: {needed}")
    silent = [at for at in range(first) if not statuses[at].answers and not statuses[at].refused]
    if silent and not claims:
        return Choice("wait", silent[0], "it may already serve the job, and neither answers nor refuses connections")
    return Choice("claim", first, "more than half of the endpoints must record that the first round begins there")


def write_init_claim(place: int, places: Sequence[str]) -> str:
    """The value recorded as ``INIT_CLAIM``: nodes with other lists, or another order, see that theirs differs."""
    return json.dumps({"at": places[place], "of": ",".join(places)})


def read_init_claim(text: bytes, places: Sequence[str]) -> tuple[int, str]:
    """Where the first round begins, as an index of ``places``, and ""; or -1, and whose list it is instead."""
    try:
        said = json.loads(text)
        if said["of"] == ",".join(places):
            return places.index(said["at"]), ""
        return -1, printable(str(said["of"]), _LONGEST_LIST)
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1, printable(text.decode(errors="replace"), _LONGEST_LIST)
