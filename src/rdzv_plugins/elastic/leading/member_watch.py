"""The leader's watch of the members' processes: one that is gone is known before the service notices it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rdzv_plugins.coordination import EndsSessions, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.liveness.peer import Peer, peer_of
from rdzv_plugins.elastic.liveness.watching import PeerWatch
from rdzv_plugins.errors import ConnectionLost, RdzvError

logger = logging.getLogger(__name__)


class MemberWatch:
    """One thread at a time. Requests raise what those of ``session`` do."""

    def __init__(self, session: Session, me: Member, on_gone: Callable[[str], None]) -> None:
        """``on_gone``: as of ``PeerWatch``. ``me``: this node, which is not watched."""
        self._session, self._me = session, me
        self.peers = PeerWatch(on_gone)
        self._watched: dict[str, Peer] = {}
        self._last_words: dict[str, int] = {}
        """Of nodes that are proved gone and whose keys are still there: the revision of what they have said last."""

    def close(self) -> None:
        """Watch nobody any more."""
        self.peers.close()

    def heard(self, member: Member, revision: int) -> bool:
        """A member says something. False: its process is gone, and had said it before its last word."""
        node = member.node_id
        if revision <= self._last_words.get(node, 0):
            return False
        # who leaves is about to be gone
        peer = None if member.leaving or node == self._me.node_id else peer_of(member, self._me.machine)
        if peer is None:
            self._forget(node)
        elif self._watched.get(node) != peer:
            self._watched[node] = peer
            self.peers.add(peer)
        return True

    def went(self, node: str) -> None:
        """Its key has gone."""
        self._forget(node)
        self._last_words.pop(node, None)

    def last_word(self, node: str) -> KeyValue | None:
        """What a node has said last whose process is gone; None if its key has gone already, which its watch tells.

        It says nothing more, so this is all: what the watch has yet to tell of it is older.
        """
        name = keys.MEMBERS + node
        held, _ = self._session.list(name, timeout=patience(self._session))
        last = next((kv for kv in held if kv.key == name), None)
        self._forget(node)
        if last is not None:
            self._last_words[node] = last.revision
        return last

    def end_session(self, node: str) -> None:
        """Its keys are to go, so that whoever leads next need not wait for it. Where that cannot be, they go later."""
        session = self._session
        if not isinstance(session, EndsSessions):
            return
        try:
            session.end_session(keys.MEMBERS + node, timeout=patience(session))
        except ConnectionLost:
            raise
        except (TimeoutError, RdzvError) as error:
            logger.warning("the session of node %s, whose agent has ended, ends by itself: %s", node, error)

    def _forget(self, node: str) -> None:
        if self._watched.pop(node, None) is not None:
            self.peers.remove(node)
