"""Who serves the endpoint: the node on which its address can be bound, and there the first agent to bind it."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.limits import StoreLimits, raise_file_limit
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.listening import bind_if_here
from rdzv_plugins.kvstore.tcpstore.listener import stranger_at, telling_whose
from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

WHO = "the node that serves the rendezvous"
"""The name used for the serving node in messages."""


def open_service(request: Request, name: str, runtime: Runtime = SYSTEM) -> NativeCoordination:
    """Serve the request's target, an ``Endpoint``, or be a client of it, for the backend called ``name``.

    Raises ``AddressInUse`` if ``is_host=true`` cannot be satisfied.
    """
    endpoint: Endpoint = request.target
    server = serve_if_here(request, endpoint, runtime)
    if server is not None:
        endpoint = Endpoint(endpoint.host, server.port)
    return client_of(endpoint, request, name, server, runtime)


def serve_if_here(request: Request, endpoint: Endpoint, runtime: Runtime = SYSTEM) -> StoreServer | None:
    """Serve ``endpoint`` if this node is the one to do so. Raises ``AddressInUse``."""
    listener = listen_for(request, endpoint, runtime)
    if listener is None:
        return None
    raise_file_limit()
    token, tls = token_of(request, runtime), certificates_of(request)
    server = StoreServer(
        threads=request.options.store_threads,
        listen_fd=listener.detach(),
        name="rendezvous",
        run=request.run_id,
        tokens=token.accepted(request.run_id) if token is not None else (),
        tls=tls,
        limits=StoreLimits.among(request.options),
        runtime=runtime,
    )
    logger.debug("serving the rendezvous of run %s at %s", request.run_id, Endpoint(endpoint.host, server.port))
    return server


def listen_for(request: Request, endpoint: Endpoint, runtime: Runtime = SYSTEM) -> socket.socket | None:
    """The socket on which this node has to serve ``endpoint``; None if it is a client. Raises ``AddressInUse``."""
    with telling_whose(request, endpoint):
        return bind_if_here(endpoint, request.options.is_host, f"the rendezvous of run {request.run_id!r}", runtime)


def client_of(
    endpoint: Endpoint, request: Request, name: str, server: StoreServer | None = None, runtime: Runtime = SYSTEM
) -> NativeCoordination:
    """The service at ``endpoint`` as this node sees it; ``server`` is this process's own. Nothing is sent yet."""
    tls = certificates_of(request)
    if tls is not None and server is not None:
        tls = tls.within_one_process()
    return NativeCoordination(
        endpoint,
        request.run_id,
        name=name,
        server=server,
        who=WHO,
        outage_timeout=request.options.outage_timeout,
        named=request.is_named,
        stranger=functools.partial(stranger_at, request, endpoint),
        token=token_of(request, runtime),
        tls=tls,
        runtime=runtime,
    )
