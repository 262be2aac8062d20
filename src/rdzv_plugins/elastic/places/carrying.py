"""What a node carries from place to place: its seats in rounds. Nothing of the node is left behind."""

from __future__ import annotations

from collections.abc import Callable

from rdzv_plugins.elastic.keys import MOST_SEATS, Assignment, Round, Seat
from rdzv_plugins.elastic.leading.quorum import seats_complete, seats_reached
from rdzv_plugins.elastic.liveness.listener import OwnPort
from rdzv_plugins.elastic.liveness.peer import name_of
from rdzv_plugins.elastic.myself import Myself
from rdzv_plugins.elastic.places.places import Places


class Carrying:
    """One node's part of ``quorum``. Each change is written with what the node says next, before anything relies on it.

    Called by the thread that joins and by the one that opens sessions, never by both at once.
    """

    def __init__(self, places: Places, myself: Myself, port: OwnPort) -> None:
        self.places, self._self, self._port = places, myself, port
        self._server = -1  # the rank of the node that served the place of the last complete round
        self._at: int | None = None
        places.carried_by(lambda: any(seat.complete for seat in self._self.me.seats))

    def reached(self, place: Assignment) -> tuple[Seat, ...] | None:
        """The seats to announce when it reaches the store of ``place``; None if too many rounds are undecided."""
        seats = seats_reached(self._self.me.seats, place)
        return seats if len(seats) <= MOST_SEATS else None

    def holds(self, place: Assignment) -> bool:
        """Whether this node has said that it reached the store of ``place``, not of another round of that number."""
        return seats_reached(self._self.me.seats, place) == self._self.me.seats

    def is_of(self, place: Assignment, declared: Round) -> bool:
        """Whether it is the round of ``place`` that was declared complete.

        Another round may have been declared with its number, as nodes have kept one from elsewhere. A round that is
        over may have been either: then the seat stays undecided.
        """
        whose = declared.master_addr, declared.master_port, declared.begun
        return declared.state == "complete" and whose == (place.master_addr, place.master_port, place.begun)

    def complete(self, place: Assignment, declared: Round) -> bool:
        """Note that the round of ``place`` was complete. Returns whether this node goes on in it.

        It does not if it has reached another round elsewhere since, and has come back: that one may have been complete,
        too.
        """
        self._server = declared.server
        seats = seats_complete(self._self.me.seats, place)
        self._self.change(seats=seats, gone=-1, server=-1)
        return len(seats) == 1

    def arrive(self, on_move: Callable[[], None]) -> None:
        """A session was opened. If it is at another place, tell whoever watches this node from the last one.

        ``on_move`` is called then, before anything is said there. Raises ``TimeoutError`` if they cannot be told now.
        """
        if self.has_moved():
            on_move()
            was_open, me = self._port.is_open, self._self.me
            self._port.part()
            self._self.change(moves=me.moves + 1)
            if was_open:
                name = name_of(me.node_id, me.moves + 1)
                self._self.change(listens=self._port.listen(name, me.address, me.public))
        self.settled()

    def has_moved(self) -> bool:
        """Whether the newest session is at a different place from the one that was ``settled`` before."""
        return self._at not in (None, self.places.at)

    def settled(self) -> None:
        """Nothing of this node is left at the previous place, and nothing of what it did there is said elsewhere.

        A node that was leaving says nothing more: its voice stays where it said so, and must not count twice.
        """
        if self.has_moved():
            gone = self._server if self.places.left_gone else -1
            self._self.change(server=self._server, gone=gone, store=None)
            if self._self.me.leaving:
                self._self.silence()
        self._at = self.places.at
