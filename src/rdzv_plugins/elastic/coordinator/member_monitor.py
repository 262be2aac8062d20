"""Which members live, as the leader knows: it watches their processes, and asks for signs of life when a worker fails.

Has a node been lost then, or has a worker failed by itself? The sessions are asked, so that nobody has to guess: its
node asks for a probe; the leader asks every node of the round for a sign of life, and announces when all have given
one. A node that does not answer is lost when its session ends, at most its time to live later. An answer counts only if
it was asked for after the failure: probes are numbered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rdzv_plugins.coordination import EndsSessions, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.failures import Peer, PeerMonitor, peer_of
from rdzv_plugins.elastic.keys import Heartbeat, Member
from rdzv_plugins.elastic.retry import request_timeout
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.runtime import Runtime

if TYPE_CHECKING:
    from queue import SimpleQueue

logger = logging.getLogger(__name__)


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

    def close(self) -> None:
        """Stop watching, and end no more sessions but those already requested: that stays right, whoever leads."""
        self._peers.close()
        self._to_end.put(None)

    def heard(self, member: Member) -> bool:
        """A member says something. False: its process is gone and its end was heard; this was still under way."""
        node = member.node_id
        if node in self._gone:
            return False
        # one that leaves is about to be gone
        peer = None if member.leaving or node == self._me.node_id else peer_of(member, self._me.machine)
        if peer is None:
            self._forget(node)
        elif self._watched.get(node) != peer:
            self._watched[node] = peer
            self._peers.add(peer)
        return True

    def went(self, node: str) -> None:
        """The node's key has gone."""
        if not self._until_proved:
            self._forget(node)
        self._gone.discard(node)

    def last_words(self, nodes: Collection[str], timeout: float) -> Mapping[str, KeyValue]:
        """What nodes whose processes are gone said last, in one request; the watch reports those without a key."""
        name = keys.MEMBERS + (next(iter(nodes)) if len(nodes) == 1 else "")
        held, _ = self._session.list(name, timeout=timeout)
        said = {kv.key.removeprefix(keys.MEMBERS): kv for kv in held}
        return {node: said[node] for node in nodes if node in said}

    def take_leave(self, node: str) -> None:
        """Stop watching a node whose process is gone and whose last word was read: what comes later does not count."""
        self._forget(node)
        self._gone.add(node)

    def end_session(self, node: str) -> None:
        """Have its keys removed, so that whoever leads next need not wait for that. Returns at once.

        If the service cannot end a session, or does not, its time to live ends it.
        """
        if not isinstance(self._session, EndsSessions):
            return
        self._to_end.put(keys.MEMBERS + node)
        if not self._ends_sessions:
            self._ends_sessions = True
            self._runtime.Thread(target=self._end_sessions, args=(self._session,), name="rdzv-session-ends").start()

    def _end_sessions(self, session: EndsSessions) -> None:
        while (key := self._to_end.get()) is not None:
            try:
                session.end_session(key, timeout=request_timeout(self._session))
            except ConnectionLost as error:
                logger.debug("sessions of nodes whose agents have ended, end by themselves: %s", error)
                return
            except Exception as error:  # a plug-in's, or the service does not answer
                logger.warning(
                    "the session of %s, whose agent has ended, ends by itself: the service has not ended it: %r",
                    key,
                    error,
                )

    def _forget(self, node: str) -> None:
        if self._watched.pop(node, None) is not None:
            self._peers.remove(node)


class LivenessRound:
    """The leader's part. No clock, no sockets; not thread-safe."""

    def __init__(self, newest: Heartbeat | None = None) -> None:
        # a probe that an earlier leader has not seen to its end is begun again when its asker is met
        known = newest or Heartbeat()
        self._number = known.number if known.answered else known.number - 1
        self._round = 0
        self._silent: set[str] = set()

    def changed(self, member: Member, working: Callable[[], Sequence[Member]], round_: int) -> Heartbeat | None:
        """A member has changed; returns the probe to publish, if any.

        ``working`` returns the nodes of round ``round_``: if there are none it is over, which is an answer, too.
        """
        if member.heartbeat_wanted > self._number and (nodes := working()):
            self._number, self._round = member.heartbeat_wanted, round_
            self._silent = {each.node_id for each in nodes if each.heartbeat_answered < self._number}
            return Heartbeat(self._number, round_, answered=not self._silent)
        return self.gone(member.node_id) if member.heartbeat_answered >= self._number else None

    def gone(self, node: str) -> Heartbeat | None:
        """A member has answered, has left or is lost: its answer is no longer waited for."""
        if node not in self._silent:
            return None
        self._silent.discard(node)
        return None if self._silent else Heartbeat(self._number, self._round, answered=True)
