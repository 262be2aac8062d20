"""What a node of an elastic backend can find out before it starts: who answers, and would the job accept it?"""

from __future__ import annotations

import contextlib
import dataclasses

from rdzv_plugins.elastic.endpoint_options import places_of
from rdzv_plugins.elastic.native_endpoint import job_of
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.settings import settings_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.coordination.service import WHO, client_of, listen_for
from rdzv_plugins.kvstore.sockets.reach import look
from rdzv_plugins.rounds.settings_check import compare
from rdzv_plugins.runtime import SYSTEM

PATIENCE_S = 5.0
"""How many seconds to wait for a slow service."""


def at_native_store(request: Request, name: str, held: contextlib.ExitStack) -> str:
    """See ``Backend.preflight``; this is for the backend called ``name``."""
    if places := places_of(request):
        each = (dataclasses.replace(request, target=place, endpoint=str(place)) for place in places)
        return "; ".join(filter(None, [at_native_store(one, name, held) for one in each]))
    endpoint: Endpoint = request.target
    listener = listen_for(request, endpoint)
    if listener is not None:
        held.enter_context(listener)
        return f"this node is to serve {endpoint}, and can"
    if not look(endpoint, WHO):
        return ""
    job = job_of(client_of(endpoint, request, name), request.options.ttl, PATIENCE_S)
    return f"a native store answers at {endpoint}, {with_job(request, name, job)}"


def with_job(request: Request, name: str, job: bytes | None) -> str:
    """What is known about the run, whose first node wrote ``job``. Raises ``SettingsDiffer`` as a launch would."""
    if job is None:
        return f"and run {request.run_id!r} has no node yet"
    options = request.options if isinstance(request.options, ElasticOptions) else ElasticOptions()
    compare(settings_of(request, name, options, SYSTEM.gethostname()), job, request.endpoint)
    return f"and run {request.run_id!r} is there, with the same settings"
