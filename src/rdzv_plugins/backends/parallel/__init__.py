"""``parallel``: elastic rendezvous on the native store, which the endpoint's node serves, or ``rdzv serve`` elsewhere.

Features: min:max nodes, given node ranks, spares, take-over of a lost leader, a lost node costs no restart.
Endpoint: ``HOST[:PORT]``, port 29500 when left out. With one node it may be left out altogether.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdzv_plugins.elastic.endpoint_options import DEFAULT_PORT, EndpointOptions, validate
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request

if TYPE_CHECKING:
    from rdzv_plugins.kvstore.sessions import NativeCoordination


@dataclass(frozen=True)
class ParallelOptions(EndpointOptions):
    """Those of every backend that meets at a native store."""


def create(request: Request) -> NativeCoordination:
    """The endpoint's service as this node sees it; serves it if this is the node to do so."""
    from rdzv_plugins.kvstore.service import open_service

    return open_service(request, "parallel", DEFAULT_PORT)


@hookimpl
def rdzv_register_backends() -> Backend:
    """The hook through which it is found."""
    return Backend(
        name="parallel",
        summary="elastic rendezvous (min:max nodes) on the native store, served by the endpoint's node or rdzv serve",
        create=create,
        aliases=("parallel-epoll",),
        capabilities=frozenset({Capability.ELASTIC, Capability.NODE_RANK, Capability.NODE_REPLACEMENT}),
        options=ParallelOptions,
        validate=validate,
    )
