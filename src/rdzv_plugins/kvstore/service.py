"""Who serves the endpoint: the node on which its address can be bound, and there the agent that binds it first."""

from __future__ import annotations

import logging

from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import AddressInUse
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.limits import raise_file_limit
from rdzv_plugins.kvstore.listening import bind
from rdzv_plugins.kvstore.reach import is_own_address
from rdzv_plugins.kvstore.server import StoreServer
from rdzv_plugins.kvstore.sessions import NativeCoordination
from rdzv_plugins.options import PortRange

logger = logging.getLogger(__name__)


def open_service(request: Request, name: str, default_port: int) -> NativeCoordination:
    """Serve the endpoint or be a client of it, for the backend called ``name``.

    Raises ``AddressInUse`` where ``is_host=true`` cannot be had.
    """
    endpoint = parse_endpoint(request.endpoint or "localhost:0", default_port)
    server = _serve(request, endpoint)
    if server is not None:
        endpoint = Endpoint(endpoint.host, server.port)
        logger.debug("serving the rendezvous of run %s at %s", request.run_id, endpoint)
    return NativeCoordination(
        endpoint, request.run_id, name=name, server=server, who="the node that serves the rendezvous"
    )


def _serve(request: Request, endpoint: Endpoint) -> StoreServer | None:
    wanted = request.options.is_host
    if not (is_own_address(endpoint.host) if wanted is None else wanted):
        return None
    try:
        listener = bind(
            endpoint.host, PortRange(endpoint.port, endpoint.port), f"the rendezvous of run {request.run_id!r}"
        )
    except AddressInUse:
        if wanted:
            raise
        return None  # another agent of this machine serves, or rdzv serve: whose it is comes out when it is greeted
    raise_file_limit()
    return StoreServer(
        threads=request.options.store_threads, listen_fd=listener.detach(), name="rendezvous", run=request.run_id
    )
