"""``parallel``: elastic rendezvous on the native store, which the endpoint's node serves, or ``rdzv serve`` elsewhere.

Features: min:max nodes, given node ranks, spares, take-over of a lost leader, a lost node costs no restart.
Endpoint: ``HOST[:PORT]``, port 29500 when left out; or several, separated by commas, of which one serves at a time.
With one node it may be left out altogether.

From ``key_bytes`` on the keys are limits of what this node serves, as those of ``rdzv serve``; those of the node that
serves count. The defaults are enough for ten thousand nodes.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdzv_plugins.elastic.endpoint_options import EndpointOptions, validate
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request

if TYPE_CHECKING:
    from rdzv_plugins.coordination import CoordinationBackend


@dataclass(frozen=True)
class ParallelOptions(EndpointOptions):
    """The options of every backend that meets at a native store."""


def create(request: Request) -> CoordinationBackend:
    """The endpoint's service as this node sees it; serves it if this is the node to do so."""
    from rdzv_plugins.elastic.places.opening import open_places

    return open_places(request, "parallel")


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

    return at_native_store(request, "parallel", held)


@hookimpl
def rdzv_register_backends() -> Backend:
    """The hook through which it is found."""
    return Backend(
        name="parallel",
        summary="elastic rendezvous (min:max nodes) on the native store, served by the endpoint's node or rdzv serve",
        create=create,
        aliases=("parallel-epoll",),
        capabilities=frozenset(
            {
                Capability.ELASTIC,
                Capability.NODE_RANK,
                Capability.NODE_REPLACEMENT,
                Capability.SEVERAL_ENDPOINTS,
                Capability.TOKEN,
            }
        ),
        options=ParallelOptions,
        validate=validate,
        check=check,
        preflight=preflight,
        meets_at="node",
        recognise=recognise,
    )
