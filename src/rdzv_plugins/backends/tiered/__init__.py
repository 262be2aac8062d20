"""``tiered``: the rendezvous of ``parallel``, and a store proxy on each node between the workers and their store.

Features: those of ``parallel``; the store has one connection for each node and far fewer requests, or with
``fanout=K`` the connections of K nodes.
Endpoint: ``HOST[:PORT]``, port 29500 when left out; or several, separated by commas, of which one serves at a time.
With one node it may be left out altogether.

From ``key_bytes`` on the keys are limits of what this node serves, as those of ``rdzv serve``; those of the node that
serves count. The defaults are enough for ten thousand nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rdzv_plugins.elastic.native_backend import native_backend
from rdzv_plugins.elastic.options import EndpointOptions
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend
from rdzv_plugins.options import option


@dataclass(frozen=True)
class TieredOptions(EndpointOptions):
    """The options of every backend that meets at a native store; here the workers' store has proxies."""

    store: Literal["torch", "parallel", "tiered"] = option(
        "tiered",
        help="Server of the workers' store: tiered, the native one with a proxy on each node; parallel, the same "
        "without; or torch's own.",
    )


@hookimpl
def rdzv_register_backends() -> Backend:
    """Register the backend: the hook through which it is found."""
    return native_backend(
        "tiered",
        "tiered-proxy",
        "elastic rendezvous as by parallel, and a store proxy on each node: fewer connections and requests",
        TieredOptions,
    )
