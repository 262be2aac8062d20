"""Which members live, as the coordinator knows: it watches their processes, and asks for signs of life.

Has a node been lost when a worker fails, or has a worker failed by itself? The sessions are asked, so that nobody has
to guess: its node asks for a heartbeat; the coordinator asks every node of the round for a sign of life, and announces
when all have given one. A node that does not answer is lost when its session ends, at most its time to live later. An
answer counts only if it was asked for after the failure: heartbeats are numbered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rdzv_plugins import coordination
from rdzv_plugins.coordination import EndsSessions, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.coordinator.gates import ProvedGone
from rdzv_plugins.elastic.coordinator.state_machine import Event, KeyGone
from rdzv_plugins.elastic.keys import Heartbeat, Member, readable
from rdzv_plugins.elastic.liveness_probe import Peer, PeerMonitor, peer_of
from rdzv_plugins.elastic.retry import request_timeout
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from queue import SimpleQueue

logger = logging.getLogger(__name__)

Ask = Callable[[Callable[[float], tuple[Sequence[KeyValue], int]]], tuple[Sequence[KeyValue], int]]


class MemberMonitor:
    """Hears what the members say and when they go, and ends the sessions of those that are gone.

    Use from one thread at a time. Requests raise what those of ``session`` raise.
    """

    def __init__(
        self,
        session: Session,
        me: Member,
        on_gone: Callable[[str], None],
        on_waits: Callable[[], None],
        runtime: Runtime,
        *,
        until_proved: bool = False,
    ) -> None:
        """``on_gone``, ``on_waits``: as for ``PeerMonitor``. ``me``: this node, which is not watched.

        ``until_proved``: keep watching a node that is lost without a word, as the proof that it is gone may yet come.
        """
        self._until_proved, self._runtime = until_proved, runtime
        self._session, self._me = session, me
        raise_file_limit()  # each member takes one
        self._peers = PeerMonitor(on_gone, on_waits, runtime)
        self._to_end: SimpleQueue[str | None] = runtime.SimpleQueue()
        self._ends_sessions = False  # a thread does so
        self._watched: dict[str, Peer] = {}
        self._gone: set[str] = set()  # the nodes that are proved gone and whose keys still exist
        self._ended: list[str] = []  # those of them whose sessions are to be ended

    def close(self) -> None:
        """Stop watching, and end no more sessions but those already requested: that stays right, whoever leads."""
        self._peers.close()
        self._to_end.put(None)

    def read(self, news: Iterable[coordination.Event | ProvedGone], ask: Ask) -> list[Event]:
        """What the news mean for the members. Keys of other kinds, and values that cannot be read, are left out.

        ``ask`` makes a request, which it gives its time-out: a node that is proved gone is heard once more before its
        end.
        """
        news = list(news)
        proved = [each.node for each in news if isinstance(each, ProvedGone)]
        last_words = self._last_words(proved, ask) if proved else {}
        return [event for each in news for event in self._events(each, last_words)]

    def _last_words(self, nodes: Sequence[str], ask: Ask) -> Mapping[str, KeyValue]:
        """What nodes whose processes are gone said last, in one request; the watch reports those without a key."""
        name = keys.MEMBERS + (nodes[0] if len(nodes) == 1 else "")
        held, _ = ask(lambda timeout: self._session.list(name, timeout=timeout))
        said = {kv.key.removeprefix(keys.MEMBERS): kv for kv in held}
        return {node: said[node] for node in nodes if node in said}

    def _events(self, news: coordination.Event | ProvedGone, last_words: Mapping[str, KeyValue]) -> Iterator[Event]:
        if isinstance(news, ProvedGone):
            yield news
            if news.node in last_words:
                # what comes later does not count
                self._forget(news.node)
                self._gone.add(news.node)
                self._ended.append(news.node)
                for member in readable(Member, [last_words[news.node]]):
                    yield member
                    logger.info("the agent on %s has exited: its host refuses connections", member.name)
                yield KeyGone(news.node)
            return
        if not news.key.startswith(keys.MEMBERS):
            return
        node = news.key.removeprefix(keys.MEMBERS)
        if news.value is None:
            if not self._until_proved:
                self._forget(node)
            self._gone.discard(node)
            yield KeyGone(node)
            return
        for member in readable(Member, [KeyValue(news.key, news.value, news.revision)]):
            # one whose process is gone, and whose end was heard: this was still under way
            if member.node_id == node and node not in self._gone:
                self._watch(member)
                yield member

    def _watch(self, member: Member) -> None:
        node = member.node_id
        # one that leaves is about to be gone
        peer = None if member.leaving or node == self._me.node_id else peer_of(member, self._me.machine)
        if peer is None:
            self._forget(node)
        elif self._watched.get(node) != peer:
            self._watched[node] = peer
            self._peers.add(peer)

    def _forget(self, node: str) -> None:
        if self._watched.pop(node, None) is not None:
            self._peers.remove(node)

    def end_sessions(self) -> None:
        """Have the keys of nodes that are proved gone removed, so that whoever leads next need not wait for that.

        Returns at once. If the service cannot end a session, or does not, its time to live ends it.
        """
        ended, self._ended = self._ended, []
        if not ended or not isinstance(self._session, EndsSessions):
            return
        for node in ended:
            self._to_end.put(keys.MEMBERS + node)
        if not self._ends_sessions:
            self._ends_sessions = True
            self._runtime.Thread(target=self._end_sessions, args=(self._session,), name="rdzv-session-ends").start()

    def _end_sessions(self, session: EndsSessions) -> None:
        while (key := self._to_end.get()) is not None:
            try:
                session.end_session(key, timeout=request_timeout(self._session))
            except ConnectionLost as error:
                logger.debug("the sessions of agents that have exited will expire on their own: %s", error)
                return
            except Exception as error:  # a plug-in's, or the service does not answer
                logger.warning(
                    "could not end the session of %s, whose agent has exited; it will expire on its own: %r", key, error
                )


class LivenessRound:
    """Whether all nodes of a round have given a sign of life. No clock, no sockets; not thread-safe."""

    def __init__(self, newest: Heartbeat | None = None) -> None:
        # a heartbeat that an earlier leader has not seen to its end is begun again when its asker is met
        known = newest or Heartbeat()
        self._number = known.number if known.answered else known.number - 1
        self._round = 0
        self._silent: set[str] = set()

    def advance(
        self, events: Sequence[Event], working: Callable[[], Sequence[Member]], round_: int
    ) -> Heartbeat | None:
        """Take in what has happened; returns the heartbeat to publish, if any.

        ``working`` returns the nodes of round ``round_``: if there are none it is over, which is an answer, too.
        """
        found: Heartbeat | None = None
        for event in events:
            if isinstance(event, KeyGone):
                found = self._heard_from(event.node) or found
        for event in events:  # now that all who answer are known
            if isinstance(event, Member):
                found = self._changed(event, working, round_) or found
        return found

    def _changed(self, member: Member, working: Callable[[], Sequence[Member]], round_: int) -> Heartbeat | None:
        if member.heartbeat_wanted > self._number and (nodes := working()):
            self._number, self._round = member.heartbeat_wanted, round_
            self._silent = {each.node_id for each in nodes if each.heartbeat_answered < self._number}
            return Heartbeat(self._number, round_, answered=not self._silent)
        return self._heard_from(member.node_id) if member.heartbeat_answered >= self._number else None

    def _heard_from(self, node: str) -> Heartbeat | None:
        """A member has answered, has left or is lost: its answer is no longer waited for."""
        if node not in self._silent:
            return None
        self._silent.discard(node)
        return None if self._silent else Heartbeat(self._number, self._round, answered=True)
