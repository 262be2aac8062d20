"""Options of the backends that meet at a native store, and what they reject; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_plugins.certificates import NodeTlsOptions, certificates_of
from rdzv_plugins.elastic import options as elastic_options
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import Endpoint, meeting_point, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.options import option

DEFAULT_PORT = 29500
MOST_PLACES = 7


@dataclass(frozen=True)
class EndpointOptions(StoreLimits, NodeTlsOptions, ElasticOptions):
    """Options of every elastic backend, plus who serves the endpoint, TLS between nodes, and limits of what is served.

    The limits are those of the endpoint, the workers' store and this node's proxy; each applies where this node has it.
    """

    is_host: bool | None = option(
        None, help="Whether this node serves the endpoint; unset: if the endpoint's address can be bound here."
    )


def meeting_places(request: Request) -> Endpoint | tuple[Endpoint, ...]:
    """Like ``meeting_point``, but accepts several, separated by commas; one serves at a time, the others stand by."""
    return parse_places(request.endpoint) if "," in request.endpoint else meeting_point(request, DEFAULT_PORT)


def parse_places(text: str) -> tuple[Endpoint, ...]:
    """Parse several places. Raises ``UsageError``, also for more than ``MOST_PLACES``, a duplicate, or port 0."""
    found = tuple(parse_endpoint(part, DEFAULT_PORT) for part in text.split(","))
    if len(found) > MOST_PLACES:
        raise UsageError(
            f"--rdzv-endpoint: {len(found)} places are too many: at most {MOST_PLACES}",
            remedy="Three are enough to lose any machine, five for two at a time.",
        )
    for place in found:
        if found.count(place) > 1:
            raise UsageError(f"--rdzv-endpoint: {place} is there twice", remedy="Name each place once.")
        if place.port == 0:
            raise UsageError(
                f"--rdzv-endpoint: port 0 of {place.host} is for one node and one place: nobody could find it",
                remedy="Choose a port, the same on every node.",
            )
    return found


def places_of(request: Request) -> tuple[Endpoint, ...]:
    """The places where the nodes of ``request`` can meet if there are several; otherwise empty."""
    found = request.target
    several = isinstance(found, tuple) and all(isinstance(each, Endpoint) for each in found)
    return found if several else ()


def validate(request: Request) -> Endpoint | tuple[Endpoint, ...]:
    """Reject what cannot work, before anything starts. Returns where the nodes meet. Raises ``UsageError``."""
    elastic_options.validate(request)
    if (certificates := certificates_of(request)) is not None:
        certificates.check()
    if isinstance(request.options, EndpointOptions):
        _validate_limits(request, request.options)
    found = meeting_places(request)
    if isinstance(found, tuple) and isinstance(request.options, EndpointOptions) and request.options.is_host:
        raise UsageError(
            f"--rdzv-conf: is_host=true does not say which of {len(found)} places this node is to serve",
            remedy="Leave it out: a node serves the place whose address is its own. is_host=false serves none.",
        )
    return found


def _validate_limits(request: Request, options: EndpointOptions) -> None:
    for name in ("sessions", "run_sessions"):
        if (most := getattr(options, name)) < request.max_nodes:
            raise UsageError(
                f"--rdzv-conf: {name}={most} is fewer than the {request.max_nodes} nodes of --nnodes, each of which "
                "has a session at the endpoint",
                remedy="Give more: rdzv status and rdzv top have one, too, while they look.",
            )
