"""Options of the backends that meet at a native store, and what they refuse; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_plugins.elastic import options as elastic_options
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import Endpoint, meeting_point
from rdzv_plugins.interfaces import Request
from rdzv_plugins.options import option

DEFAULT_PORT = 29500


@dataclass(frozen=True)
class EndpointOptions(ElasticOptions):
    """The options of every elastic backend, and who serves the endpoint."""

    is_host: bool | None = option(
        None, help="Whether this node serves the endpoint; unset: if the endpoint's address can be bound here."
    )


def validate(request: Request) -> Endpoint:
    """Refuse what cannot work, before anything starts; returns where the nodes meet. Raises ``UsageError``."""
    elastic_options.validate(request)
    return meeting_point(request, DEFAULT_PORT)
