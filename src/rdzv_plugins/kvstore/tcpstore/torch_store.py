"""torch's TCPStore, served and reached our way: bind first and publish afterwards, with errors that say why."""

from __future__ import annotations

import functools
import os
import socket
import time
from datetime import timedelta

from torch.distributed import DistError, TCPStore

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.kvstore.sockets.listening import Ports, bind
from rdzv_plugins.kvstore.sockets.reach import wait_reachable
from rdzv_plugins.kvstore.tcpstore.listener import Stranger, greet_store, unknown


def serve(host: str, ports: Ports, *, timeout: float, what: str) -> TCPStore:
    """Serve a TCPStore from this process until the returned object is dropped; ``.port`` is its port.

    ``host`` is the address that peers dial: a loopback address is served on loopback only, any other on all interfaces,
    as torch does. ``timeout`` (seconds) is the store's own. Raises ``AddressInUse``.
    """
    return serve_at(bind(host, ports, what), timeout=timeout)


def serve_at(listener: socket.socket, *, timeout: float) -> TCPStore:
    """Serve a TCPStore on a listening socket, which the store owns from here on."""
    address, port = listener.getsockname()[:2]
    own = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(address, address)
    return TCPStore(
        own,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
        master_listen_fd=listener.detach(),
        use_libuv=os.environ.get("USE_LIBUV", "1") == "1",
    )


def connect(
    endpoint: Endpoint, *, join_timeout: float, timeout: float, who: str, stranger: Stranger = unknown
) -> tuple[TCPStore, str]:
    """A client of the TCPStore at ``endpoint``, and the address of this machine on the way there.

    Tries for ``join_timeout`` seconds; ``timeout`` (seconds) applies to later reads; ``stranger`` is asked when the
    listener does not answer as a TCPStore. Raises ``EndpointUnreachable``, also when something other than a store
    answers.
    """
    deadline = time.monotonic() + join_timeout
    # check ourselves first: torch's own client waits without limit for the answer to a greeting
    address = wait_reachable(endpoint, join_timeout, who, functools.partial(greet_store, stranger=stranger))
    remaining = max(1.0, deadline - time.monotonic())
    try:
        store = TCPStore(
            endpoint.host, endpoint.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=remaining)
        )
    except DistError as error:
        raise EndpointUnreachable(
            f"{endpoint} accepts connections, but does not answer as a torch TCPStore: {error}",
            remedy="Is another program using that port? Choose another one, the same on every node.",
        ) from error
    store.set_timeout(timedelta(seconds=timeout))
    return store, address
