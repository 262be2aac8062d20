"""The state of torch's dynamic rendezvous in a TCPStore, keys and format as torch's own c10d backend has them.

The same keys let plain torchrun nodes take part. Which node serves is decided by binding to the
endpoint's address, not by comparing host names: second network cards and CNAMEs are recognised.
"""

from __future__ import annotations

import logging

from torch.distributed import FileStore, Store
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from rdzv_plugins.elastic.torch_errors import as_torch
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import AddressInUse, RendezvousFailed
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.reach import default_address, is_own_address, resolve
from rdzv_plugins.kvstore.torch_store import connect, serve
from rdzv_plugins.options import PortRange

logger = logging.getLogger(__name__)


class C10dBackend(C10dRendezvousBackend):  # type: ignore[misc]
    """torch's backend, plus the store it stands on, whether this process serves it, and this node's address."""

    def __init__(self, store: Store, run_id: str, *, hosts_store: bool, local_addr: str | None) -> None:
        super().__init__(store, run_id)
        self.store = store
        self.hosts_store = hosts_store
        self.local_addr = local_addr


def open_backend(request: Request, default_port: int) -> C10dBackend:
    """Serve or reach the store at the request's endpoint. Raises ``EndpointUnreachable`` or ``AddressInUse``."""
    if request.options.store_type == "file":
        address = "127.0.0.1" if request.max_nodes == 1 else default_address()
        return C10dBackend(FileStore(request.endpoint), request.run_id, hosts_store=False, local_addr=address)
    endpoint = parse_endpoint(request.endpoint or "localhost:0", default_port)
    try:
        return _open_tcp(request, endpoint)
    except RendezvousFailed as error:
        raise as_torch(error) from error.__cause__


def _open_tcp(request: Request, endpoint: Endpoint) -> C10dBackend:
    options = request.options
    serves = is_own_address(endpoint.host) if options.is_host is None else options.is_host
    if serves:
        try:
            store = serve(
                endpoint.host,
                PortRange(endpoint.port, endpoint.port),
                timeout=options.read_timeout,
                what=f"the rendezvous of run {request.run_id!r}",
            )
            logger.debug("serving the rendezvous at %s", Endpoint(endpoint.host, store.port))
            return C10dBackend(store, request.run_id, hosts_store=True, local_addr=_dialable(endpoint))
        except AddressInUse:
            if options.is_host:
                raise
            # another agent of this job may serve on this machine: then this one is its client
    store, local = connect(
        endpoint,
        join_timeout=options.join_seconds,
        timeout=options.read_timeout,
        who="the node that hosts the rendezvous",
    )
    return C10dBackend(store, request.run_id, hosts_store=False, local_addr=local)


def _dialable(endpoint: Endpoint) -> str:
    """The address under which peers reach this node: what the endpoint resolves to, if not its own loopback."""
    address = str(resolve(endpoint.host, endpoint.port)[0][4][0])
    if Endpoint(address, 0).is_loopback and not endpoint.is_loopback:  # a host's own name in its /etc/hosts
        return default_address()
    return address
