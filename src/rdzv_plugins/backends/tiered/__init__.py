"""``tiered``: the rendezvous of ``parallel``, and a store proxy on each node between the workers and their store.

Features: those of ``parallel``; the store has one connection for each node and far fewer requests, or with
``fanout=K`` the connections of K nodes.
Endpoint: ``HOST[:PORT]``, port 29500 when left out; or several, separated by commas, of which one serves at a time.
With one node it may be left out altogether.

From ``key_bytes`` on the keys are limits of what this node serves, as those of ``rdzv serve``; those of the node that
serves count. The defaults are enough for ten thousand nodes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rdzv_plugins.elastic.endpoint_options import EndpointOptions, validate
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.options import option

if TYPE_CHECKING:
    from rdzv_plugins.coordination import CoordinationBackend


@dataclass(frozen=True)
class TieredOptions(EndpointOptions):
    """The options of every backend that meets at a native store; here the workers' store has proxies."""

    store: Literal["torch", "parallel", "tiered"] = option(
        "tiered",
        help="Server of the workers' store: tiered, the native one with a proxy on each node; parallel, the same "
        "without; or torch's own.",
    )


def create(request: Request) -> CoordinationBackend:
    """The endpoint's service as this node sees it; serves it if this is the node to do so."""
    from rdzv_plugins.elastic.places.opening import open_places

    return open_places(request, "tiered")


def recognise(request: Request, timeout: float) -> str:
    """As ``Backend.recognise``."""
    from rdzv_plugins.elastic import native_endpoint

    return native_endpoint.recognise(request, timeout)


def check() -> None:
    """Check that the native store, at which the nodes meet, was built. Raises ``MissingDependency``."""
    from rdzv_plugins.kvstore.native.server import native_part

    native_part()


def preflight(request: Request, held: ExitStack) -> str:
    """What this node finds at the endpoint, or whether it can serve it."""
    from rdzv_plugins.elastic.preflight import at_native_store

    return at_native_store(request, "tiered", held)


@hookimpl
def rdzv_register_backends() -> Backend:
    """The hook through which it is found."""
    return Backend(
        name="tiered",
        summary="elastic rendezvous as by parallel, and a store proxy on each node: fewer connections and requests",
        create=create,
        aliases=("tiered-proxy",),
        capabilities=frozenset(
            {
                Capability.ELASTIC,
                Capability.NODE_RANK,
                Capability.NODE_REPLACEMENT,
                Capability.SEVERAL_ENDPOINTS,
                Capability.TOKEN,
            }
        ),
        options=TieredOptions,
        validate=validate,
        check=check,
        preflight=preflight,
        meets_at="node",
        recognise=recognise,
    )
