"""Options of the backends that meet at a native store, and what they refuse; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_plugins.elastic import elastic_options
from rdzv_plugins.elastic.elastic_options import ElasticOptions
from rdzv_plugins.endpoints import parse_meeting_point, require_meeting_point
from rdzv_plugins.interfaces import Request
from rdzv_plugins.options import option

DEFAULT_PORT = 29500


@dataclass(frozen=True)
class EndpointOptions(ElasticOptions):
    """Those of every elastic backend, and who serves."""

    is_host: bool | None = option(
        None, help="Whether this node serves the endpoint; unset: if the endpoint's address can be bound here."
    )


def validate(request: Request) -> None:
    """Refuse what cannot work, before anything starts. Raises ``UsageError``."""
    elastic_options.validate(request)
    require_meeting_point(request.endpoint, request.max_nodes)
    if request.endpoint:
        parse_meeting_point(request.endpoint, DEFAULT_PORT, request.max_nodes)
