"""A node's watch of the leader: when the leader's process is proved gone, this node takes the lead at once."""

from __future__ import annotations

from collections.abc import Callable

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.elastic.keys import Leading, Member, decode
from rdzv_plugins.elastic.liveness.peer import peer_of
from rdzv_plugins.elastic.liveness.watching import PeerWatch
from rdzv_plugins.runtime import Runtime

WATCHERS = 16
"""How many nodes of a round watch the leader, those with the lowest ranks: one that goes on is enough."""


class LeaderWatch:
    """Watches the leader's process. Thread-safe.

    When the process is proved gone, ``on_gone`` is called with the leader's key, its node, and how often this watch had
    started again when the proof came. It is called on the thread of the process's connections, and must return at once.
    """

    def __init__(
        self,
        on_gone: Callable[[KeyValue, str, int], None],
        on_waits: Callable[[], None],
        runtime: Runtime,
        *,
        until_proved: bool = False,
    ) -> None:
        """``on_waits``: as for ``PeerWatch``.

        ``until_proved``: keep watching a node that no longer leads, as the proof may yet come.
        """
        self._until_proved, self._runtime = until_proved, runtime
        self._earlier: dict[str, KeyValue] = {}
        """Those that led before and are still watched, with the keys by which they led."""
        self._on_gone, self._on_waits = on_gone, on_waits
        self._lock = self._runtime.Lock()
        self._leader: KeyValue | None = None
        self._node = ""
        self._watch: PeerWatch | None = None
        self._closed = False
        self._moves = 0

    def follow(self, leads: Callable[[], KeyValue | None], me: Member) -> None:
        """Watch the node whose key ``leads`` returns, and nobody else; None means nobody.

        ``leads`` is called under the lock, so that of two threads neither goes back to a former leader.
        """
        with self._lock:
            leader = leads()
            if leader == self._leader or self._closed or (leader is None and self._until_proved):
                return
            before, self._leader = self._leader, leader
            if self._node and self._until_proved and before is not None:
                self._earlier[self._node] = before
            elif self._node and self._watch is not None:
                self._watch.remove(self._node)
            self._node = ""
            if leader is None:
                return
            try:
                leading = decode(Leading, leader.value)
            except ValueError:  # reported by whoever leads
                return
            peer = peer_of(leading, me.machine)
            if peer is None or peer.node_id == me.node_id:
                return
            if self._watch is None or self._watch.is_closed:
                self._watch = PeerWatch(self._gone, self._on_waits, self._runtime)
            self._node = peer.node_id
            self._watch.add(peer)

    def start_again(self) -> None:
        """Forget who led: this node is now a member elsewhere, where what is proved about them is of no use."""
        with self._lock:
            self._moves += 1
            self._leader = None
            for node in (self._node, *self._earlier):
                if node and self._watch is not None:
                    self._watch.remove(node)
            self._node = ""
            self._earlier.clear()

    def close(self) -> None:
        """Stop watching. May be repeated."""
        with self._lock:
            self._closed = True
            if self._watch is not None:
                self._watch.close()

    def _gone(self, node: str) -> None:
        with self._lock:
            leader = self._leader if node == self._node else self._earlier.pop(node, None)
            if leader is None or self._closed:
                return
            moves = self._moves
        self._on_gone(leader, node, moves)
