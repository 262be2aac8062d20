"""Who leads: this node, if nobody else does, or if the process of the one that led is proved gone.

The nodes with the lowest ranks watch the leader's process (``failures``). Of those that see it go one takes the lead at
once, without waiting for the end of its session.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdzv_plugins.coordination import KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.coordinator.coordinator import Coordinator, Neighbours
from rdzv_plugins.elastic.coordinator.placement import Order, Rules
from rdzv_plugins.elastic.current_round import NodeContext
from rdzv_plugins.elastic.keys import LeaderInfo, decode, encode
from rdzv_plugins.elastic.liveness_probe import PeerMonitor, peer_of

WATCHERS = 16
"""How many nodes of a round watch the leader, those with the lowest ranks: one that goes on is enough."""


class Election:
    """Thread-safe. What is proved of a leader counts where it was seen: not after a move to another endpoint."""

    def __init__(self, node: NodeContext, order: Order) -> None:
        """With several endpoints one that no longer leads is watched, too: proof may yet come."""
        request, options = node.request, node.options
        self._cache, self._registration = node.cache, node.registration
        self._round, self._runtime = node.round, node.runtime
        self._order, self._in_background, self._votes = order, node.in_background, node.votes
        self._rules = Rules(
            request.min_nodes,
            request.max_nodes,
            last_call=options.last_call_timeout,
            duplicate=options.ttl + 1,
            back=options.ttl + 1,
            rejoin=options.rejoin_timeout,
            majority=node.votes is not None,
            node_unit=options.node_unit,
            min_per_domain=options.min_per_domain,
            preflight_factor=options.preflight_factor if request.preflight else None,
        )
        self._neighbours = Neighbours(allowed=options.allow_same_host)
        self._moves = 0  # how often this node has moved from one of several endpoints to another
        self._lock = self._runtime.Lock()  # protects what is watched
        self._watched_leader: KeyValue | None = None  # the leader's key
        self._watched: dict[str, KeyValue] = {}
        """The nodes that are watched, the leader and those that led before, with the keys by which they lead or led."""
        self._monitor: PeerMonitor | None = None
        self._closed = False
        self._campaign_lock = self._runtime.Lock()  # one attempt at a time
        self._coordinator: Coordinator | None = None
        self._proved_gone: set[str] = set()
        """Nodes whose processes were proved gone while they and this one were members at the same place."""

    @property
    def leads(self) -> bool:
        """Whether this node leads, as far as it knows."""
        return (leader := self._coordinator) is not None and leader.is_active

    @property
    def led(self) -> tuple[str, int] | None:
        """See ``Member.led``."""
        return leader.led if (leader := self._coordinator) is not None else None

    def watch_leader(self) -> None:
        """Have this node, if its rank is low, watch the process of the one that leads now, and nobody else's."""
        with self._lock:
            # under the lock, so that of two threads neither goes back to a former leader
            leader = self._leader_to_watch()
            if leader == self._watched_leader or self._closed or (leader is None and self._votes is not None):
                return
            self._watched_leader = leader
            if self._votes is None:
                self._unwatch_all()
            if leader is None:
                return
            try:
                leading = decode(LeaderInfo, leader.value)
            except ValueError:  # reported by whoever leads
                return
            peer = peer_of(leading, self._registration.me.machine)
            if peer is None or peer.node_id == self._registration.me.node_id:
                return
            if self._monitor is None or self._monitor.is_closed:
                self._monitor = PeerMonitor(self._on_gone, self._share_outage, self._runtime)
            self._watched[peer.node_id] = leader
            self._monitor.add(peer)

    def _unwatch_all(self) -> None:
        for node in self._watched:
            if self._monitor is not None:
                self._monitor.remove(node)
        self._watched.clear()

    def _leader_to_watch(self) -> KeyValue | None:
        place = self._round.place
        if self._votes is not None:  # from the start: two nodes need the proof
            place = self._cache.assignment or place
        return self._cache.leader if place is not None and 0 <= place.rank < WATCHERS else None

    def _on_gone(self, node: str) -> None:
        with self._lock:
            leader = self._watched.get(node)
            if leader is None or self._closed:
                return
            moves = self._moves
        self._in_background(f"take over {node}", lambda: self._take_over(leader, node, moves))

    def _share_outage(self) -> None:
        """A node that this one watches waits for the service. Needs something of it at once, too: the outage is one."""
        self._in_background("share outage", self._registration.publish)

    def moved(self) -> None:
        """The newest session is at another place: what was proved at the last one no longer counts."""
        with self._lock:
            self._moves += 1
            self._watched_leader = None
            self._unwatch_all()
        with self._campaign_lock:
            self._proved_gone.clear()

    def campaign(self) -> None:
        """Become the leader unless somebody else is. Makes one request at most; does nothing without a session."""
        with self._campaign_lock:
            session, mine = self._may_lead(), self._my_key()
            if session is None or self._cache.leader is not None:
                return
            # the answer says whose key it is, even if it was written by a request that got no answer
            _, key = self._registration.outage.retry_until_lost(
                session, lambda timeout: session.create(keys.LEADER, mine, ephemeral=True, timeout=timeout)
            )
            if key.value == mine:
                self._start_leading(session, key, [])

    def _take_over(self, held: KeyValue, gone: str, moves: int) -> None:
        """Take the lead from node ``gone``, whose process is proved gone and whose key is ``held``.

        ``moves`` is how often this node had moved then. Does nothing if it has moved since, if that key has disappeared
        in the meantime, or if another node was faster. Raises ``ConnectionLost``.
        """
        with self._campaign_lock:
            if moves != self._moves:
                return
            if self._votes is not None:
                self._proved_gone.add(gone)
                if self._coordinator is not None:
                    self._coordinator.proved(gone)
            session, mine = self._may_lead(), self._my_key()
            if session is None:
                return
            self._registration.outage.retry_until_lost(
                session, lambda timeout: session.put({keys.LEADER: mine}, ephemeral=True, guard=held, timeout=timeout)
            )
            # the answer does not tell whether a request that got no answer has done it
            found, _ = self._registration.outage.retry_until_lost(
                session, lambda timeout: session.list(keys.LEADER, timeout=timeout)
            )
            for key in found:
                if key.key == keys.LEADER and key.value == mine:
                    self._start_leading(session, key, [gone])

    def _may_lead(self) -> Session | None:
        """The session in which this node may try to lead; None if it has none, has left, or was found stuck."""
        if self._registration.is_closed or (self._coordinator is not None and self._coordinator.stuck):  # others can
            return None
        return self._registration.session

    def _my_key(self) -> bytes:
        me = self._registration.me
        return encode(LeaderInfo(me.node_id, me.machine, me.address, me.public, me.listens, me.incarnation))

    def _start_leading(self, session: Session, key: KeyValue, gone: Sequence[str]) -> None:
        """Lead by ``key``, unless this node does. ``gone``: who led before, if that is why."""
        if self._coordinator is not None and self._coordinator.leads(session, key):
            return
        self._stop_leading()
        self._coordinator = Coordinator(
            session,
            key,
            self._rules,
            self._order,
            self._neighbours,
            self._registration.me,
            self._registration.outage,
            self._runtime,
            proved=[*gone, *sorted(self._proved_gone.difference(gone))],
            first_here=self._votes is None or self._votes.is_at_first,
            on_free=self._cache.wake,
            on_waits=self._share_outage,
        )

    def close(self) -> None:
        """Watch nobody, and lead no longer. May be repeated."""
        with self._lock:
            self._closed = True
            if self._monitor is not None:
                self._monitor.close()
        with self._campaign_lock:
            self._stop_leading()

    def _stop_leading(self) -> None:
        leader, self._coordinator = self._coordinator, None
        if leader is not None:
            leader.stop()
