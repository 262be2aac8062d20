"""After the service has lost its memory: is the round whole that its nodes say they keep?

A service that was restarted knows nothing. The nodes that are back say which place they have kept (``Member.keeps``),
or at least which round they have heard of (``Member.known``). The newest of these rounds goes on if each of its nodes
is back with its own place. Otherwise it is over: one of the nodes has left it, has gone, does not come in time, or
contradicts another. But a node that is not back may still be working until its session is over, wherever that was.
Until then nothing else begins, unless each place is accounted for: its node is back, or its process is gone. No clock,
no sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rdzv_plugins.elastic.coordinator import gates
from rdzv_plugins.elastic.coordinator.gates import ForgottenRound, Gate, Wait
from rdzv_plugins.elastic.keys import Assignment, Member, Which


class RoundRecovery(Gate):
    """What a leader has heard while no round is declared: from then on the service knows, and this gate goes."""

    def __init__(self, window: float, begun: Mapping[str, Assignment], *, one_place: bool) -> None:
        """``window``: how long the nodes that are back wait for the rest; no session outlives its service by that much.

        ``begun``: the places that were given already. ``one_place``: there is one endpoint, and the node that served it
        is gone; with several, ``quorum`` says which nodes have to come before a round begins.
        """
        self._window, self._one_place = window, one_place
        self._begun = dict(begun)
        self._accounted: dict[Which, set[int]] = {}
        """The ranks of the newest round (or rounds of that number) whose nodes are here or known to be gone."""
        self._kept: dict[str, Assignment] = {}
        self._until: float | None = None
        self._waits = False
        """The nodes of a round may still come, or work."""
        self._late = False
        self._why = ""  # why the round cannot be whole
        self._left = 0
        self._anew = self._server = self._gone = ""
        self._number = 0  # the newest round that any member has heard of

    def observe(self, event: gates.GateEvent, now: float) -> bool:
        match event:
            case gates.MemberHeard(member, takes_part=True):
                self._hear(member, now)
            case gates.MemberGone(member, done):
                place = self._kept.get(member.node_id)
                if place is not None and not (done and member.finished_round == place.round):
                    self._gone = member.name
            case gates.RoundPlanned(places):  # as far as is known, nobody here has kept one
                self._begun.update(places)
        return False

    def _hear(self, member: Member, now: float) -> None:
        node, kept = member.node_id, member.kept
        if kept is not None and kept.node_id == node and kept.is_place:
            if not self._kept:
                self._until, self._late = now + self._window, False
            if self._kept.setdefault(node, kept) != kept:
                self._anew = member.name
        elif node in self._kept:
            self._anew = member.name
        elif member.serves:
            self._server = member.name
        if kept is not None and 0 <= member.gone_server_rank != kept.rank:
            self._gone = "the node that served the rendezvous"
        newest = max(member.known_round, member.last_round, kept.round if kept is not None else 0)
        if newest > self._number:
            self._number, self._accounted = newest, {}
        self._account(member)
        self._left = max(self._left, member.last_round)
        if self._number and self._until is None:
            self._until = now + self._window

    def _account(self, member: Member) -> None:
        """A member's place in the newest round is accounted for: the member is here."""
        for vote in member.votes:
            if vote.round != self._number:
                continue
            for rank in (vote.rank, member.server_rank):
                if 0 <= rank < vote.world:
                    self._accounted.setdefault(vote.which, set()).add(rank)

    def check(self, waiting: Collection[str], members: Collection[str], now: float) -> Wait | ForgottenRound | None:
        if self._until is None:
            return None
        self._late = self._late or now >= self._until
        if not self._kept:  # called with each batch of news: nothing that takes longer with more nodes
            is_open = self._number > self._left or not self._all_accounted()
            self._waits = is_open and not self._late
            return Wait(self._until, gives_up=True) if self._waits else None
        places = self._places
        self._why = self._why_over(list(places.values()))
        is_whole = bool(places) and len(places) == next(iter(places.values())).world
        is_open = not self._all_accounted() if self._why else not is_whole
        self._waits = is_open and not self._late
        if self._waits:
            return Wait(self._until, gives_up=True)
        too_few = "" if is_whole else f"{self._how_many()} nodes came back within {self._window:g} s"
        return ForgottenRound(self._number, places, self._why or too_few)

    @property
    def _places(self) -> dict[str, Assignment]:
        """The places of the newest round of the nodes that are back, by node; empty if others were given its number."""
        if any(place.round == self._number for place in self._of_others()):
            return {}
        return {node: place for node, place in self._kept.items() if place.round == self._number}

    def _all_accounted(self) -> bool:
        """Whether no node of the newest round may still be working somewhere else."""
        if not self._one_place:
            return True
        known = self._accounted.items()
        return bool(known) and all(len(ranks) == world for (_, world, _), ranks in known)

    def _of_others(self) -> list[Assignment]:
        """Places that were given by a leader that did not know of this round."""
        kept = [place for place in self._kept.values() if place.round == self._number]
        ranks = {place.rank for place in kept}

        def belongs(node: str, place: Assignment) -> bool:  # an earlier leader has told it again
            if node in self._kept:
                return self._kept[node] == place
            return place.rank not in ranks and any(place.which == each.which for each in kept)

        return [place for node, place in self._begun.items() if not belongs(node, place)]

    def _why_over(self, places: list[Assignment]) -> str:
        if self._anew:
            return f"{self._anew} has left it"
        if self._left >= self._number:
            return "one of its nodes has left it"
        if self._gone:
            return f"{self._gone} was lost"
        if self._server:
            return f"the node that served it was lost, and {self._server} serves now"
        if any(place.round >= self._number for place in self._of_others()):
            return "another round was begun"
        if not all(each.which == places[0].which for each in places):
            return "its nodes do not agree on it"
        ranks = {each.rank for each in places}
        if len(ranks) < len(places) or not ranks <= set(range(places[0].world if places else 0)):
            return "two of its nodes claim one rank"
        return ""

    def _how_many(self) -> str:
        places = list(self._places.values())
        return f"{len(places)} of {places[0].world}" if places else "none of the"

    def facts(self) -> str:
        if not self._waits:
            return ""
        if self._why:
            return (
                f"the rendezvous has lost its memory, and {self._why}: the next round begins when all nodes of round "
                f"{self._number} are back or can no longer be working, within {self._window:g} s"
            )
        back = ", ".join(sorted(each.name for each in self._places.values()))
        return (
            f"the rendezvous has lost its memory: {self._how_many()} nodes of round {self._number} are back"
            f"{f' ({back})' if back else ''}"
        )
