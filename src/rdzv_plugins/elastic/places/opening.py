"""Opens the service of a run at one endpoint or several: what ``create`` of the native backends does."""

from __future__ import annotations

import dataclasses
import logging

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.elastic.endpoint_options import places_of
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.coordination.service import client_of, open_service, serve_if_here
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.runtime import SYSTEM

logger = logging.getLogger(__name__)


def open_places(request: Request, name: str) -> CoordinationBackend:
    """The service as this node sees it, for the backend called ``name``; serves a place if that is this node's task.

    With several places it serves the first one that is its own and free: two agents on one machine serve two. Raises
    ``AddressInUse`` if ``is_host=true`` cannot be satisfied.
    """
    places = places_of(request)
    if not places:
        return open_service(request, name)
    from rdzv_plugins.elastic.places.places import Places  # one endpoint does without it

    # a place that falls silent is left when a session there has ended: the others can serve
    patient = dataclasses.replace(request, options=dataclasses.replace(request.options, outage_timeout=1.0))
    servers: dict[int, StoreServer] = {}
    for at, endpoint in enumerate(places):
        if not servers and (server := serve_if_here(request, endpoint)) is not None:
            servers[at] = server
    services = [client_of(place, patient, name, servers.get(at)) for at, place in enumerate(places)]
    if request.max_nodes == 2:
        logger.warning(
            "with two nodes neither is more than half: if one is lost without a trace (its machine or its network, not "
            "only its process), the job goes on without it only if that was node 0. Remedy: a third node"
        )
    return Places(places, services, next(iter(servers), None), request.options.ttl, SYSTEM)
