"""After the service has lost its memory: is the round whole that its nodes say they keep?

A service that was restarted knows nothing. The nodes that are back say which place they have kept (``Member.keeps``),
or at least which round they have heard of (``Member.known``). The newest of these rounds goes on if each of its nodes
is back with its own place. Otherwise it is over: one of the nodes has left it, has gone, does not come in time, or
contradicts another. But a node that is not back may still be working until its session is over, wherever that was.
Until then nothing else begins, unless each place is accounted for: its node is back, or its process is gone. No clock,
no sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rdzv_plugins.elastic.coordinator.placement import Gate, GateVerdict
from rdzv_plugins.elastic.coordinator.quorum import Which, round_of, which
from rdzv_plugins.elastic.keys import Assignment, Member, Round


class RoundRecovery(Gate):
    """What a leader has heard while no round is declared. Not thread-safe. Times are the leader's own."""

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
        self._left = 0
        self._anew = self._server = self._gone = ""
        self._number = 0  # the newest round that any member has heard of

    @property
    def _places(self) -> dict[str, Assignment]:
        """The places of the newest round of the nodes that are back, by node; empty if others were given its number."""
        if any(place.round == self._number for place in self._of_others()):
            return {}
        return {node: place for node, place in self._kept.items() if place.round == self._number}

    def newest(self, members: Iterable[str]) -> int:
        """A service that has lost its memory numbers on from what its members were in, even if they have not left."""
        return self._number

    def deadline(self, *, forming: bool) -> float | None:
        return self._until if self._waits else None

    def accepted(self, member: Member, now: float) -> None:
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
        if kept is not None and 0 <= member.gone != kept.rank:
            self._gone = "the node that served the rendezvous"
        newest = max(member.known_round, member.last_round, kept.round if kept is not None else 0)
        if newest > self._number:
            self._number, self._accounted = newest, {}
        self._account(member)
        self._left = max(self._left, member.last_round)
        if self._number and self._until is None:
            self._until = now + self._window

    def gone(self, member: Member, *, done: bool) -> None:
        place = self._kept.get(member.node_id)
        if place is not None and not (done and member.finished_round == place.round):
            self._gone = member.name

    def begin(self, plan: Mapping[str, Assignment]) -> None:
        """A round was begun: as far as is known, nobody here has kept one."""
        self._begun.update(plan)

    def served(self, plan: Mapping[str, Assignment]) -> None:
        self._begun.update(plan)

    def declared(self, round_: Round, places: Mapping[str, Assignment]) -> bool:
        return False  # from now on the service knows

    def found(self, now: float) -> GateVerdict | None:
        self._late = self._late or (self._until is not None and now >= self._until)
        in_time = self._until is not None and not self._late
        if not self._kept:  # called with each batch of news: nothing that takes longer with more nodes
            self._waits = in_time and (self._number > self._left or not self._all_accounted())
            return None
        places = self._places
        why_over = self._why_over(list(places.values()))
        if why_over:
            self._waits = in_time and not self._all_accounted()
        else:
            is_whole = bool(places) and len(places) == next(iter(places.values())).world
            self._waits = in_time and not is_whole
            why_over = "" if is_whole else f"{self._how_many()} nodes came back within {self._window:g} s"
        return None if self._waits else GateVerdict(self._number, places, why_over)

    def stops(self) -> bool:
        return self._waits

    def waits(self, waiting: Collection[str], members: Collection[str], now: float) -> bool:
        return self._waits

    def facts(self) -> str:
        if not self._waits:
            return ""
        if self._kept and (why := self._why_over(list(self._places.values()))):
            return (
                f"the rendezvous has lost its memory, and {why}: the next round begins when all nodes of round "
                f"{self._number} are back, or can no longer be at work, within {self._window:g} s"
            )
        back = ", ".join(sorted(each.name for each in self._places.values()))
        return (
            f"the rendezvous has lost its memory: {self._how_many()} nodes of round {self._number} are back"
            f"{f' ({back})' if back else ''}"
        )

    def _account(self, member: Member) -> None:
        """A member's place in the newest round is accounted for: the member is here."""
        for seat in member.votes:
            if seat.round != self._number:
                continue
            for rank in (seat.rank, member.server):
                if 0 <= rank < seat.world:
                    self._accounted.setdefault(which(seat), set()).add(rank)

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
            return place.rank not in ranks and any(round_of(place) == round_of(each) for each in kept)

        return [place for node, place in self._begun.items() if not belongs(node, place)]

    def _how_many(self) -> str:
        places = list(self._places.values())
        return f"{len(places)} of {places[0].world}" if places else "none of the"

    def _why_over(self, places: list[Assignment]) -> str:
        if self._anew:
            return f"{self._anew} has left it"
        if self._left >= self._number:
            return "one of its nodes has left it"
        if self._gone:
            return f"{self._gone} was lost"
        if self._server:
            return f"the node that served it was lost, and {self._server} has come"
        if any(place.round >= self._number for place in self._of_others()):
            return "another one was begun"
        if not all(round_of(each) == round_of(places[0]) for each in places):
            return "its nodes do not agree on it"
        ranks = {each.rank for each in places}
        if len(ranks) < len(places) or not ranks <= set(range(places[0].world if places else 0)):
            return "two of its nodes claim one rank"
        return ""
