"""What a node has been told, and what follows: the newest value of every key that it watches. Reading it sends nothing.

It may have been told what ends its waiting: the job has ended elsewhere, is about to, or goes on without it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from rdzv_plugins import errors
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Finishing, NodeNotice, Probe, Round, decode
from rdzv_plugins.interfaces import Outcome, Request, RoundEvent, TellEvent
from rdzv_plugins.plain_text import printable
from rdzv_plugins.rounds.ends import ended_error, parse_outcome
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)

_SHOWN_NAME = 80


class View:
    """What this node has been told. Fed by the watches' threads, read by the agent's. Thread-safe.

    ``on_change`` is called after each batch and each ``wake``, on the thread that brings the news; it returns at once.
    What happens to this node's rounds is told before that, and costs nothing until ``tell_to`` is called.
    """

    def __init__(self, on_change: Callable[[], None], on_asked: Callable[[Event], None], runtime: Runtime) -> None:
        """``on_asked`` is called with each event of a question (``asking``), on that thread, and returns at once."""
        self._on_change, self._on_asked = on_change, on_asked
        self._tell: TellEvent | None = None
        self._telling = runtime.Lock()
        self._placed = self._complete = self._over = 0  # the newest rounds of which that was told
        self._changed = runtime.Condition()
        self.version = 0  # a number that grows with every change
        self._session = 0
        self.newest = 0  # the newest round that was ever declared, even by a service that no longer knows it
        self._clear()

    def _clear(self) -> None:
        self.leader: KeyValue | None = None  # the key of the leading node
        self.round = self.over = Round()  # the last one declared over: the next may be announced at once with it
        self.assignment: Assignment | None = None
        self.progress = ""
        self.probe = Probe()
        self.notice = NodeNotice()
        self.finishing = Finishing()
        self.ended: Outcome | None = None

    def begin(self) -> Callable[[Sequence[Event]], None]:
        """Forget everything, and return what takes in the news. A new session's service sends all that it still knows.

        A job that has ended has ended, although a service may forget it with the last session of its nodes. Watches of
        an earlier session may still deliver something, later than those of the new one: that is ignored.
        """
        with self._changed:
            ended = self.ended
            self._clear()
            self.ended = ended
            self._session += 1
            self.version += 1
            return functools.partial(self._feed, self._session)

    def _feed(self, session: int, events: Sequence[Event]) -> None:
        with self._changed:
            if session != self._session:
                return
            for event in events:
                try:
                    self._take(event)
                except ValueError as error:  # a value of another version, or not one of ours
                    logger.warning(
                        "cannot read key '%s' of the rendezvous: %s", printable(event.key, _SHOWN_NAME), error
                    )
        self.wake()

    def wake(self) -> None:
        """Note that something other than a key has changed, so that whoever waits looks again."""
        with self._changed:
            self.version += 1
            self._changed.notify_all()
        self._tell_news()
        self._on_change()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until ``version`` is not ``seen``, or for ``timeout`` seconds; returns the version."""
        with self._changed:
            self._changed.wait_for(lambda: self.version != seen, max(0.0, timeout))
            return self.version

    def tell_to(self, tell: TellEvent) -> None:
        """Call ``tell`` from now on; see ``TellEvent``."""
        self._tell = tell

    def tell(self, event: RoundEvent) -> None:
        """Report what this node has done itself. Called before it tells the others."""
        if self._tell is not None:
            self._tell(event)

    def _tell_news(self) -> None:
        """Report what is new; it concerns this node's rounds only. Returns at once."""
        if self._tell is None:
            return
        with self._telling:
            place, declared, over = self.assignment, self.round, self.over
            if self._over < over.number <= self._placed:
                self._over = over.number
                self.tell(RoundEvent("over", over.number, reason=over.reason, cause=over.cause))
            if place is None or not place.is_place:
                return
            if place.round > self._placed:
                self._placed = place.round
                self.tell(RoundEvent("placed", place.round, place.rank, place.world))
            if declared.state == "complete" and self._complete < declared.number == place.round:
                self._complete = place.round
                self.tell(RoundEvent("complete", place.round, place.rank, place.world))

    def _take(self, event: Event) -> None:
        key, value = event.key, event.value
        if key.startswith(keys.ASKED):
            self._on_asked(event)
        elif key == keys.LEADER:
            self.leader = None if value is None else KeyValue(key, value, event.revision)
        elif value is None:  # nothing else is ever deleted
            if key.startswith(keys.NODES):
                self.assignment = None
        elif key == keys.ROUND:
            self.round = decode(Round, value)
            self.newest = max(self.newest, self.round.number)
            if self.round.state == "over":
                self.over = self.round
        elif key == keys.PROGRESS:
            self.progress = printable(value.decode())
        elif key == keys.PROBE:
            self.probe = decode(Probe, value)
        elif key == keys.NOTICE:
            self.notice = decode(NodeNotice, value)
        elif key == keys.FINISHING:
            self.finishing = decode(Finishing, value)
        elif key == keys.END:
            self.ended = parse_outcome(value)
        elif key.startswith(keys.NODES):
            self.assignment = decode(Assignment, value)


def raise_if_not_needed(view: View, request: Request, round_: int, *, spare: bool) -> None:
    """Raise what ends the waiting of a node whose last round was ``round_``: the job has ended or goes on without it.

    ``spare``: the node was in an earlier round, or has waited while others worked, ready to replace one of them.
    """
    if view.ended is not None:
        raise ended_error(view.ended, request)
    if view.round.state == "failed" and view.round.unfit and view.round.number > round_:
        raise errors.PreflightFailed(f"run {request.run_id!r} cannot go on: {view.round.reason}")
    if view.round.state == "failed" and view.round.number > round_:
        raise errors.RendezvousFailed(
            f"run {request.run_id!r}: round {view.round.number} failed: {view.round.reason}",
            remedy="Check the route and the firewall between these nodes (--rdzv-conf worker_ports=FIRST-LAST confines "
            "the ports), or name the right address with --local-addr.",
        )
    if is_finishing(view) and not _is_inside(view, round_):
        if spare:
            was = "was left out" if round_ else "was a spare"
            raise errors.SpareReleased(f"run {request.run_id!r} is done without this node, which {was}")
        raise errors.NotNeeded(
            f"run {request.run_id!r} at {request.endpoint} is about to end ({view.finishing.by} is done): this node "
            "has come too late to take part, and has not run its script",
            remedy="If it was meant for another job, start that one with another --rdzv-id, or when this one has "
            "ended.",
        )


def _is_inside(view: View, round_: int) -> bool:
    """Whether the node has a place in the round that is complete, or had one when it was complete."""
    place = view.assignment
    return round_ == view.round.number or (place is not None and place.is_place and place.round == view.round.number)


def is_finishing(view: View) -> bool:
    """Whether a node of the round was done and has left, so that the job is about to end."""
    return view.round.state == "complete" and view.finishing.round == view.round.number
