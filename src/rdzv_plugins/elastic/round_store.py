"""The workers' store of a round, from both ends: rank 0 serves it, and every node dials it before it counts as reached.

With ``store=tiered``, workers and agents talk to this node's proxy after that; there is a new one in each round. With
``fanout=K`` the proxies of nodes 0 to K-1 connect to the store. That of any other node r connects to the proxy of node
r modulo K, which announces in the agents' store of the round where it takes connections (``trunk/<r>``). A proxy that
has lost the store closes by itself, and with it the connections of its workers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import Endpoint, is_loopback_address, parse_endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable
from rdzv_plugins.kvstore.native.framing import greet_guarded
from rdzv_plugins.kvstore.native.limits import StoreLimits, raise_file_limit
from rdzv_plugins.kvstore.native.server import Admit, StoreProxy
from rdzv_plugins.kvstore.sockets.listening import PortAllocator
from rdzv_plugins.kvstore.sockets.reach import CancelToken, Greeting, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import greet_store
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.options import PortRange
from rdzv_plugins.rounds.worker_stores import WorkerStores
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.security.certificates import NodeCertificates
from rdzv_plugins.security.job_token import JobToken

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_PREFIX = "agents"  # the agents of a round share its workers' store, under this prefix
_ROUND = "round"  # the agents' key for the round that a store was made for
_ATTEMPT_S = 1.0
_PAUSE_S = 0.2
_STILL = 1 / 3
"""A fraction of the time to live. Keep-alives are sent three times within it: a shorter standstill loses no session."""
_ANSWER_S = 10.0  # seconds to wait for an answer from this process: longer than it can be kept from running

OnLost = Callable[[int, str], None]
"""Called once, on a thread of the proxy, with the round and a sentence saying why."""


class RoundStore:
    """The workers' store of a round and this node's proxy, at most one of each at a time. Thread-safe.

    There is no proxy with another store, or with ``worker_transport=direct``.
    """

    def __init__(
        self,
        options: ElasticOptions,
        on_lost: OnLost,
        runtime: Runtime,
        *,
        session_lives: Callable[[], bool] = lambda: True,
        token: JobToken | None = None,
        run_id: str = "",
        several: bool = False,
        tls: NodeCertificates | None = None,
    ) -> None:
        """``on_lost`` is called when this node's proxy has lost the store. ``several``: there are more nodes than one.

        ``session_lives`` waits until it is known whether the session lives. With the job's ``token``, proxies prove to
        each other that they know it, for run ``run_id``, and workers must be this user's. The latter also holds with
        ``tls``, the certificates used between its nodes, which protect everything that crosses machines.
        """
        # otherwise there is one node: see ``options.validate_elastic``
        self._token, self._tls = (token, tls) if options.store == "tiered" else (None, None)
        self._run_id, self._on_lost = run_id, on_lost
        self._greet: Greeting = functools.partial(greet_guarded, token=self._token, run_id=run_id)
        self._options, self._runtime, self._session_lives = options, runtime, session_lives
        self._ports = PortAllocator(options.worker_ports)
        self._admit: Admit = "anyone" if token is None and tls is None else "user"
        self._stores = WorkerStores(
            options,
            timeout=options.read_timeout,
            ports=self._ports,
            shared_by=run_id if several else "",
            tokens=self._token.accepted(run_id) if self._token is not None else (),
            admit=self._admit,
            tls=self._tls,
            runtime=runtime,
        )
        self._lock, self._proxy_lock = self._runtime.Lock(), self._runtime.Lock()
        self.patience = max(options.reach_timeout, options.ttl + 1)
        """Seconds for which a store that does not answer is dialled again: by then a lost node is known to be lost."""
        self._proxy: StoreProxy | None = None
        self._proxied: Assignment | None = None  # the place for which there was a proxy last
        self.environment: dict[str, str] = {}
        """Variables for the workers of the round: the true store's address, and the Unix socket."""
        self._waits = (0, CancelToken())  # of the round that was reached last
        self._give_up_at = 0.0
        self._served = 0  # the round whose store is served here
        self._local_addr = ""  # on the way to the store
        self.agents: PlainClient | None = None
        """The agents' client of the store of the round that was reached last."""

    def serve(self, place: Assignment, address: str) -> tuple[int, str, int]:
        """Serve it as rank 0, listening before anybody knows: (round, address, port). Raises ``AddressInUse``."""
        with self._lock:
            store = self._stores.open(address, f"the workers' store of round {place.round}", first=place.round == 1)
            self._served = place.round
            if self._options.is_native:  # torch's does not notice
                store.pause_after(self._options.ttl * _STILL, functools.partial(self._on_pause, store))
        near = Endpoint(address if is_loopback_address(address) else _LOOPBACK, store.port)
        mine = CancelToken()  # never interrupted: it is a store of this process
        own = self._tls.within_one_process() if self._tls is not None else None
        connection, reason = try_connect(near, _ANSWER_S, self._greet, interruption=mine, tls=own)
        if connection is None:
            raise EndpointUnreachable(f"the workers' store that this node serves at {near} does not answer: {reason}")
        client = self._client(connection, mine)
        client.set(_ROUND, str(place.round))
        client.check([_ROUND])  # wait for an answer: the store is there before anybody is told of it
        client.close()
        return place.round, address, store.port

    def _on_pause(self, store: Any, pause: int) -> None:
        """This process has stood still, and the store has stopped serving: others may have a newer round.

        It goes on if this node's session lives. Otherwise it stays stopped until the node joins again, which closes it.
        """
        if self._session_lives():
            store.resume(pause)

    def reach(self, place: Assignment) -> str | float:
        """Dial the store. Returns "", or why it cannot be reached, or when to try again (monotonic clock, seconds).

        Blocks for about a second at most: the round may be given up in the meantime because rank 0 was lost.
        """
        now = self._runtime.monotonic()
        if place.round != self._waits[0]:
            # a node that is unreachable because it is lost should be known as lost first
            self._give_up_at = now + self.patience
            self._waits = (place.round, CancelToken())
        endpoint = Endpoint(place.master_addr, place.master_port)
        try:
            connection, reason = self.attempt(endpoint, _ATTEMPT_S, self._interruption)
        except EndpointUnreachable as error:  # something other than a store answers
            return str(error)
        if connection is None:
            if self._runtime.monotonic() >= self._give_up_at:
                return f"{reason}, for {self.patience:g} s"
            return self._runtime.monotonic() + _PAUSE_S
        self._local_addr = str(connection.getsockname()[0])
        self._use(connection)
        return ""

    def attempt(
        self, endpoint: Endpoint, timeout: float, interruption: CancelToken | None = None
    ) -> tuple[socket.socket | None, str]:
        """Talk to the store of a round at ``endpoint``, as an agent does; returns what ``try_connect`` does."""
        return try_connect(endpoint, timeout, self._greet, interruption=interruption, tls=self._tls)

    def open(self, place: Assignment, address: str | None) -> Endpoint:
        """The round is complete: return where the workers of this node find its store.

        A proxy is connected to the store or to its parent, and listens; ``address`` is the one that was given for this
        node. A root that refuses is tried again until ``interrupt``, or for long enough. Raises
        ``EndpointUnreachable``, ``AddressInUse``, or a ``StoreError`` when the parent does not say where it is.
        """
        root = Endpoint(place.master_addr, place.master_port)
        if self._options.store != "tiered":
            return root
        self.environment = {"RDZV_ROOT_ADDR": root.host, "RDZV_ROOT_PORT": str(root.port)}
        if self._options.worker_transport == "direct":
            return root
        assert self.agents is not None
        where = self._open_proxy(place, root, self.agents, address or self._local_addr)
        connection, reason = try_connect(where, _ANSWER_S, greet_store, interruption=self._interruption)
        if connection is None:
            raise EndpointUnreachable(f"this node's own proxy at {where} does not answer: {reason}")
        self._use(connection)
        self._check_round(place)
        return where

    def _open_proxy(self, place: Assignment, root: Endpoint, agents: PlainClient, address: str) -> Endpoint:
        """Connect it, and have it listen. Other nodes' proxies find it at ``address`` and one of the ports, in turn."""
        above = root
        if 0 < self._options.fanout <= place.rank:
            parent = _trunk(place.rank % self._options.fanout)
            above = parse_endpoint(agents.get(parent).decode(), None, what=parent)
        proxy = self._connect(place, above, self._interruption)
        try:
            if self._has_children(place):
                host = address if is_loopback_address(address) else ""
                admit: Admit = "token" if self._token is not None else "anyone"
                port = proxy.listen(host, self._ports, admit=admit, under_tls=self._tls is not None)
                agents.set(_trunk(place.rank), str(Endpoint(address, port)))
            near = Endpoint(_LOOPBACK, proxy.listen(_LOOPBACK, PortRange(), admit=self._admit))
            if self._options.worker_transport == "unix":
                path = f"@rdzv-store-{self._runtime.uuid4().hex}"
                proxy.listen_unix(path, admit=self._admit)
                self.environment["RDZV_STORE_SOCKET"] = path
            if self._options.answered_writes:
                self.environment["RDZV_STORE_ANSWERED"] = "1"
            if self._options.answered_writes or self._options.worker_transport == "unix":
                # something is arranged in workers, and those of a launcher started by a worker have another store
                self.environment["RDZV_STORE_PORT"] = str(near.port)
        except BaseException:
            proxy.close()
            raise
        with self._proxy_lock:
            self._proxy, self._proxied = proxy, place
        logger.debug("this node's proxy is at %s; it has its connection to the store at %s", near, above)
        return near

    def interrupt(self, round_: int, reason: str) -> None:
        """End all waits of this node's agent in the store of ``round_``, whoever serves it. Never blocks; any thread.

        From now on, requests to that store fail at once with ``StoreLost`` and ``reason``.
        """
        waited_for, interruption = self._waits
        if waited_for == round_:
            interruption.interrupt(reason)

    @property
    def _interruption(self) -> CancelToken:
        return self._waits[1]

    def is_cut_off(self) -> bool:
        """Whether this node's proxy has no connection to the store: its users are cut off, or are about to be."""
        with self._proxy_lock:
            return self._proxy is not None and not self._proxy.stats()["proxy"]["attached"]

    @property
    def is_parent(self) -> bool:
        """Whether other nodes' proxies depend on this one's."""
        return self._proxied is not None and self._has_children(self._proxied)

    def close(self, round_: int) -> None:
        """Cut off all users of the store of ``round_`` or an earlier one, if it is served here."""
        with self._lock:
            if self._served <= round_:
                self._stores.close()

    def leave(self) -> None:
        """Stop using the store as a client. Cuts off this node's workers if they have a proxy."""
        agents, self.agents = self.agents, None
        if agents is not None:
            agents.close()
        self._close_proxy()

    def shutdown(self) -> None:
        """Close the round's store, and end every wait in it."""
        self.leave()
        with self._lock:
            self._stores.shutdown()

    def _use(self, connection: socket.socket) -> None:
        old, self.agents = self.agents, self._client(connection, self._interruption)
        if old is not None:
            old.close()

    def _client(self, connection: socket.socket, interruption: CancelToken) -> PlainClient:
        return PlainClient(connection, prefix=_PREFIX, timeout=self._options.read_timeout, interruption=interruption)

    def _check_round(self, place: Assignment) -> None:
        """Check which round's store this is.

        The proxy was connected by address, and unless there is a range of ports, another round's store may be there by
        now. Raises ``EndpointUnreachable``.
        """
        assert self.agents is not None
        found = self.agents.get(_ROUND).decode(errors="replace")
        if found != str(place.round):
            self._close_proxy()
            raise EndpointUnreachable(
                f"the store at {place.master_addr} port {place.master_port} is that of round {found}, not of round "
                f"{place.round}: this node was late"
            )

    def _close_proxy(self) -> None:
        """Cut off the workers of the round, and the proxies below this one."""
        with self._proxy_lock:
            proxy, self._proxy = self._proxy, None
        if proxy is None or self._proxied is None:
            return
        saved = _summary(proxy)
        proxy.close()
        logger.debug("round %d: %s", self._proxied.round, saved)

    def _has_children(self, place: Assignment) -> bool:
        return place.rank < self._options.fanout and place.rank + self._options.fanout < place.world

    def _connect(self, place: Assignment, above: Endpoint, interruption: CancelToken) -> StoreProxy:
        raise_file_limit()  # each worker takes a file or two
        deadline = self._runtime.monotonic() + self.patience
        while True:
            try:
                return StoreProxy(
                    above,
                    name=f"node {place.rank} on {place.host} (pid {place.pid})",
                    leaf=not self._has_children(place),
                    grace=self._options.trunk_grace,
                    limits=StoreLimits.among(self._options),
                    timeout=_ATTEMPT_S,
                    on_lost=lambda reason: self._on_lost(place.round, reason),
                    interruption=interruption,
                    token=self._token,
                    run_id=self._run_id,
                    tls=self._tls,
                )
            except AccessRefused:
                raise
            except EndpointUnreachable:
                if interruption.reason or self._runtime.monotonic() >= deadline:
                    raise


def _trunk(rank: int) -> str:
    return f"trunk/{rank}"


def _summary(proxy: StoreProxy) -> str:
    """What the round has cost, in one line."""
    stats = proxy.stats()
    asked, passed = sum(stats["requests"].values()), sum(stats["proxy"]["upstream"].values())
    return f"this node's proxy has taken {asked} requests, and sent {passed} up to the store"
