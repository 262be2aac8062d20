"""The state of torch's dynamic rendezvous in a TCPStore, with the keys and format of torch's own c10d backend.

Using the same keys lets plain torchrun nodes take part. Which node serves is decided by binding to the endpoint's
address, not by comparing host names: second network cards and CNAMEs are recognised.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import pathlib
import socket
import tempfile

from torch.distributed import FileStore, Store
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from rdzv_plugins.backends.c10d import NAME, state_key
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RendezvousFailed
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.sockets.listening import bind_if_here
from rdzv_plugins.kvstore.sockets.reach import default_address, look, resolve
from rdzv_plugins.kvstore.tcpstore.listener import (
    greet_store,
    hello_key,
    hello_of,
    refuse_others,
    stranger_at,
    telling_whose,
)
from rdzv_plugins.kvstore.tcpstore.torch_store import connect, serve_at
from rdzv_plugins.rounds.settings_check import wanted
from rdzv_plugins.torch_types import as_torch

logger = logging.getLogger(__name__)

_WHO = "the node that hosts the rendezvous"


class C10dBackend(C10dRendezvousBackend):  # type: ignore[misc]
    """torch's backend, plus the store it uses, whether this process serves that, and this node's address."""

    def __init__(self, store: Store, run_id: str, *, hosts_store: bool, local_addr: str | None) -> None:
        super().__init__(store, run_id)
        self.store = store
        self.hosts_store = hosts_store
        self.local_addr = local_addr


def preflight(request: Request, held: contextlib.ExitStack) -> str:
    """What this node finds at the endpoint, or whether it can serve there. See ``Backend.preflight``."""
    if request.options.store_type == "file":
        return _preflight_file(request)
    endpoint: Endpoint = request.target
    listener = _listen(request, endpoint)
    if listener is not None:
        held.enter_context(listener)
        return f"this node will serve {endpoint}"
    return f"{_WHO} answers at {endpoint}" if look(endpoint, _WHO, greet_store) else ""


def open_backend(request: Request) -> C10dBackend:
    """This node's view of the shared state: serve or reach the store at the request's endpoint, which may block.

    Raises ``EndpointUnreachable`` or ``AddressInUse``.
    """
    try:
        if request.options.store_type == "file":
            return _open_file(request)
        return _open_tcp(request, request.target)
    except RendezvousFailed as error:
        raise as_torch(error) from error.__cause__


def _open_file(request: Request) -> C10dBackend:
    path = request.endpoint
    try:
        if path:  # torch's store would try for minutes, ignoring signals
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
        else:
            descriptor, path = tempfile.mkstemp(prefix="rdzv-c10d-")
            os.close(descriptor)
            atexit.register(pathlib.Path(path).unlink, missing_ok=True)
    except OSError as error:
        raise _unopenable(request, error) from None
    address = "127.0.0.1" if request.max_nodes == 1 else default_address()
    return C10dBackend(FileStore(path), request.run_id, hosts_store=False, local_addr=address)


def _preflight_file(request: Request) -> str:
    path = request.endpoint
    try:
        if not path:
            return "a temporary file, of this node alone"
        if os.path.exists(path):
            os.close(os.open(path, os.O_RDWR))
            return f"{path} can be read and written"
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(path))):  # it has no name, or only briefly
            return f"{path} can be made"
    except OSError as error:
        raise _unopenable(request, error) from None


def _unopenable(request: Request, error: OSError) -> EndpointUnreachable:
    return EndpointUnreachable(
        f"the file of run {request.run_id!r}, {request.endpoint or 'a temporary one'}, cannot be opened: "
        f"{error.strerror}",
        remedy="With store_type=file the endpoint is the path of a file that every node can read and write.",
    )


def _listen(request: Request, endpoint: Endpoint) -> socket.socket | None:
    """A socket for the store if this node has to serve it; None if it is a client."""
    if request.options.is_host:
        _dialable(endpoint)
    with telling_whose(request, endpoint):
        return bind_if_here(endpoint, request.options.is_host, f"the rendezvous of run {request.run_id!r}")


def _open_tcp(request: Request, endpoint: Endpoint) -> C10dBackend:
    options = request.options
    listener = _listen(request, endpoint)
    if listener is not None:
        address = _dialable(endpoint)
        store = serve_at(listener, timeout=options.read_timeout)
        store.set(hello_key(NAME), hello_of(request, wanted(request.min_nodes, request.max_nodes)).text)
        logger.debug("serving the rendezvous at %s", Endpoint(endpoint.host, store.port))
        return C10dBackend(store, request.run_id, hosts_store=True, local_addr=address)
    store, local = connect(
        endpoint,
        join_timeout=options.join_seconds,
        timeout=options.read_timeout,
        who=_WHO,
        stranger=functools.partial(stranger_at, request, endpoint),
    )
    # it answers as a TCPStore, as do those of other backends; plain torchrun writes only the second key
    refuse_others(store, (hello_key(NAME), state_key(request.run_id)), request, endpoint)
    return C10dBackend(store, request.run_id, hosts_store=False, local_addr=local)


def _dialable(endpoint: Endpoint) -> str:
    """The address at which peers reach this node: what the endpoint resolves to, unless that is its own loopback."""
    try:
        address = str(resolve(endpoint.host, endpoint.port)[0][4][0])
    except socket.gaierror as error:
        raise EndpointUnreachable(
            f"this node is to serve {endpoint} (is_host=true), but the name does not resolve ({error.strerror})",
            remedy="Check the name, or give an IP address.",
        ) from None
    if Endpoint(address, 0).is_loopback and not endpoint.is_loopback:  # a host's own name in its /etc/hosts
        return default_address()
    return address
