"""The leader's watch of the members' processes: one that is gone is known before the service notices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from rdzv_plugins.coordination import KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.session_ends import SessionEnds
from rdzv_plugins.elastic.liveness.peer import Peer, peer_of
from rdzv_plugins.elastic.liveness.watching import PeerWatch
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.runtime import Runtime


class MemberWatch:
    """Hears what the members say and when they go. Use from one thread at a time.

    Requests raise what those of ``session`` raise.
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
        """``on_gone``, ``on_waits``: as for ``PeerWatch``. ``me``: this node, which is not watched.

        ``until_proved``: keep watching a node that is lost without a word, as the proof that it is gone may yet come.
        """
        self._until_proved = until_proved
        self._session, self._me = session, me
        raise_file_limit()  # each member takes one
        self.peers = PeerWatch(on_gone, on_waits, runtime)
        self._ends = SessionEnds(session, runtime)
        self._watched: dict[str, Peer] = {}
        self._said: dict[str, tuple[object, ...]] = {}
        """What each member last said about where it is: most of what it says is about something else."""
        self._gone: set[str] = set()
        """The nodes that are proved gone and whose keys still exist."""

    def close(self) -> None:
        """Stop watching."""
        self.peers.close()
        self._ends.close()

    def heard(self, member: Member) -> bool:
        """A member says something. False: its process is gone and its end was heard; this was still under way."""
        node = member.node_id
        if node in self._gone:
            return False
        where = (member.machine, member.address, member.public, member.listens, member.moves, member.leaving)
        if self._said.get(node) == where:
            return True
        self._said[node] = where
        # one that leaves is about to be gone
        peer = None if member.leaving or node == self._me.node_id else peer_of(member, self._me.machine)
        if peer is None:
            self._forget(node)
        elif self._watched.get(node) != peer:
            self._watched[node] = peer
            self.peers.add(peer)
        return True

    def went(self, node: str) -> None:
        """The node's key has gone."""
        self._said.pop(node, None)
        if not self._until_proved:
            self._forget(node)
        self._gone.discard(node)

    def last_words(self, nodes: Collection[str], timeout: float) -> Mapping[str, KeyValue]:
        """What nodes whose processes are gone said last, by node: one request, however many there are.

        A node that is missing has no key any more; the watch reports that.
        """
        name = keys.MEMBERS + (next(iter(nodes)) if len(nodes) == 1 else "")
        held, _ = self._session.list(name, timeout=timeout)
        said = {kv.key.removeprefix(keys.MEMBERS): kv for kv in held}
        return {node: said[node] for node in nodes if node in said}

    def take_leave(self, node: str) -> None:
        """Stop watching a node whose process is gone and whose last word was read: what comes later does not count."""
        self._forget(node)
        self._gone.add(node)

    def end_session(self, node: str) -> None:
        """Have its keys removed, so that whoever leads next need not wait for that.

        Returns at once: see ``SessionEnds``.
        """
        self._ends.end(keys.MEMBERS + node)

    def _forget(self, node: str) -> None:
        if self._watched.pop(node, None) is not None:
            self.peers.remove(node)
