"""``parallel``: elastic rendezvous on the native store, which the endpoint's node serves, or ``rdzv serve`` elsewhere.

Features: min:max nodes, given node ranks, spares, take-over of a lost leader, a lost node costs no restart.
Endpoint: ``HOST[:PORT]``, port 29500 when left out. With one node it may be left out altogether.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rdzv_plugins.elastic.elastic_options import ElasticOptions
from rdzv_plugins.elastic.elastic_options import validate as validate_elastic
from rdzv_plugins.endpoints import parse_meeting_point, require_meeting_point
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend, Capability, Request
from rdzv_plugins.options import option

if TYPE_CHECKING:
    from rdzv_plugins.kvstore.sessions import NativeCoordination

DEFAULT_PORT = 29500


@dataclass(frozen=True)
class ParallelOptions(ElasticOptions):
    """Those of every elastic backend, and who serves."""

    is_host: bool | None = option(
        None, help="Whether this node serves the endpoint; unset: if the endpoint's address can be bound here."
    )


def validate(request: Request) -> None:
    """Refuse what cannot work, before anything starts."""
    validate_elastic(request)
    require_meeting_point(request.endpoint, request.max_nodes)
    if request.endpoint:
        parse_meeting_point(request.endpoint, DEFAULT_PORT, request.max_nodes)


def create(request: Request) -> NativeCoordination:
    """The endpoint's service as this node sees it; serves it if this is the node to do so."""
    from rdzv_plugins.backends.parallel.service import open_service

    return open_service(request, DEFAULT_PORT)


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
