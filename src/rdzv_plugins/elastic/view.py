"""What a node has been told: the newest value of every key that it watches. Reading it sends nothing."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Finishing, NodeNotice, Probe, Round, decode
from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.plain_text import printable
from rdzv_plugins.rounds.ends import parse_outcome
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)

_SHOWN_NAME = 80


class View:
    """What this node has been told. Fed by the watches' threads, read by the agent's. Thread-safe.

    ``on_change`` is called after each batch and each ``wake``, on the thread that brings the news; it must return at
    once.
    """

    def __init__(self, on_change: Callable[[], None], runtime: Runtime) -> None:
        self._on_change = on_change
        self.on_asked: Callable[[Event], None] = lambda _: None
        """Called with question events (``answering``), on the thread that brings the news; returns at once."""
        self._changed = runtime.Condition()
        self._version = 0
        self._session = 0
        self.newest = 0
        """The newest round that was ever declared, even by a service that no longer knows it."""
        self._clear()

    def _clear(self) -> None:
        self.leader: KeyValue | None = None
        """The key of the leading node."""
        self.round = self.over = Round()  # the last one declared over: the next may be announced at once with it
        self.assignment: Assignment | None = None
        self.progress = ""
        self.probe = Probe()
        self.notice = NodeNotice()
        self.finishing = Finishing()
        self.ended: Outcome | None = None

    @property
    def has_leader(self) -> bool:
        """Whether a node leads."""
        return self.leader is not None

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        return self._version

    def begin(self) -> Callable[[Sequence[Event]], None]:
        """Forget everything, and return what takes in the news. A new session's service sends all that it still knows.

        Watches of an earlier session may still deliver something, later than those of the new one: that is ignored.
        """
        with self._changed:
            self._clear()
            self._session += 1
            self._version += 1
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
            self._version += 1
            self._changed.notify_all()
        self._on_change()

    def wake(self) -> None:
        """Note that something other than a key has changed, so that whoever waits looks again."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()
        self._on_change()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until ``version`` is not ``seen``, or for ``timeout`` seconds; returns the version."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, max(0.0, timeout))
            return self._version

    def _take(self, event: Event) -> None:
        key, value = event.key, event.value
        if key.startswith(keys.ASKED):
            self.on_asked(event)
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
