"""The proxy of a node, between its workers and the store of a round (``store=tiered``); a new one in each round.

With ``fanout=K`` the proxies of nodes 0 to K-1 connect to the store. That of any other node r connects to the proxy of
node r modulo K, which announces in the agents' store of the round where it takes connections (``trunk/<r>``). A
proxy that has lost the store closes by itself, and with it the connections of its workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rdzv_plugins.certificates import NodeCertificates
from rdzv_plugins.elastic.keys import Assignment
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import Endpoint, is_loopback_address, parse_endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.native.limits import StoreLimits, raise_file_limit
from rdzv_plugins.kvstore.native.proxy import StoreProxy
from rdzv_plugins.kvstore.native.server import Admit
from rdzv_plugins.kvstore.sockets.listening import PortTurns
from rdzv_plugins.kvstore.sockets.reach import Interruption
from rdzv_plugins.kvstore.tcpstore.plain_client import PlainClient
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_ATTEMPT_S = 1.0

OnLost = Callable[[int, str], None]
"""Called once, on a thread of the proxy, with the round and a sentence saying why."""


class NodeProxy:
    """This node's proxy, at most one at a time; none with another store or ``worker_transport=direct``. Thread-safe."""

    def __init__(
        self,
        options: ElasticOptions,
        ports: PortTurns,
        patience: float,
        on_lost: OnLost,
        runtime: Runtime,
        *,
        token: JobToken | None = None,
        run_id: str = "",
        tls: NodeCertificates | None = None,
    ) -> None:
        """Other nodes' proxies find it at one of ``ports``, in turn.

        A root that cannot be reached is tried again for ``patience`` seconds. With a ``token``, proxies prove to each
        other that they know it, for run ``run_id``, and workers must be this user's. The latter also holds with
        ``tls``, which protects everything that crosses machines.
        """
        self._runtime = runtime
        self._token, self._run_id, self._tls = token, run_id, tls
        self._options, self._ports, self._patience, self._on_lost = options, ports, patience, on_lost
        self._lock = self._runtime.Lock()
        self._proxy: StoreProxy | None = None
        self._place: Assignment | None = None
        self._environment: dict[str, str] = {}

    @property
    def used(self) -> bool:
        """Whether there is a proxy in each round."""
        return self._options.store == "tiered" and self._options.worker_transport != "direct"

    @property
    def is_parent(self) -> bool:
        """Whether proxies of other nodes depend on this one."""
        return self._place is not None and self._has_children(self._place)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the workers of the round: the true store's address, and the Unix socket."""
        return dict(self._environment)

    def open(self, place: Assignment, agents: PlainClient, address: str, interruption: Interruption) -> Endpoint:
        """Connect to the store of ``place`` or to the parent, and listen. Returns where the workers find their store.

        ``agents`` is a client of that store, ``address`` this node's address for other nodes. A root that refuses is
        tried again until ``interruption``, or for long enough. Raises ``EndpointUnreachable``, ``AddressInUse``, or a
        ``StoreError`` when the parent does not say where it is.
        """
        root = Endpoint(place.master_addr, place.master_port)
        self._environment = {"RDZV_ROOT_ADDR": root.host, "RDZV_ROOT_PORT": str(root.port)}
        if not self.used:
            return root
        above = root
        if 0 < self._options.fanout <= place.rank:
            parent = _trunk(place.rank % self._options.fanout)
            above = parse_endpoint(agents.get(parent).decode(), None, what=parent)
        proxy = self._connect(place, above, interruption)
        try:
            if self._has_children(place):
                host = address if is_loopback_address(address) else ""
                admit: Admit = "token" if self._token is not None else "anyone"
                port = proxy.listen(host, self._ports, admit=admit, under_tls=self._tls is not None)
                agents.set(_trunk(place.rank), str(Endpoint(address, port)))
            workers: Admit = "anyone" if self._token is None and self._tls is None else "user"
            near = Endpoint(_LOOPBACK, proxy.listen(_LOOPBACK, PortRange(), admit=workers))
            if self._options.worker_transport == "unix":
                path = f"@rdzv-store-{self._runtime.uuid4().hex}"
                proxy.listen_unix(path, admit=workers)
                self._environment["RDZV_STORE_SOCKET"] = path
            if self._options.answered_writes:
                self._environment["RDZV_STORE_ANSWERED"] = "1"
            if self._options.answered_writes or self._options.worker_transport == "unix":
                # something is arranged in workers, and those of a launcher started by a worker have another store
                self._environment["RDZV_STORE_PORT"] = str(near.port)
        except BaseException:
            proxy.close()
            raise
        with self._lock:
            self._proxy, self._place = proxy, place
        logger.debug("this node's proxy is at %s; it has its connection to the store at %s", near, above)
        return near

    def is_cut_off(self) -> bool:
        """Whether it has no connection to the store now: its users are cut off, or are about to be."""
        with self._lock:
            return self._proxy is not None and not self._proxy.stats()["proxy"]["attached"]

    def close(self) -> None:
        """Cut off the workers of the round, and the proxies below this one."""
        with self._lock:
            proxy, self._proxy = self._proxy, None
        if proxy is None or self._place is None:
            return
        saved = _summary(proxy)
        proxy.close()
        logger.debug("round %d: %s", self._place.round, saved)

    def _has_children(self, place: Assignment) -> bool:
        return place.rank < self._options.fanout and place.rank + self._options.fanout < place.world

    def _connect(self, place: Assignment, above: Endpoint, interruption: Interruption) -> StoreProxy:
        raise_file_limit()  # each worker takes a file or two
        deadline = self._runtime.monotonic() + self._patience
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
