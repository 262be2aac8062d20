"""What backends that meet at a native store do there: open its service, and tell from outside who answers.

The latter is asked before a node starts, too: would the job accept it?
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from typing import Any

from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.elastic.keys import JOB
from rdzv_plugins.elastic.options import DEFAULT_PORT, ElasticOptions, places_of
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import AccessRefused, RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of
from rdzv_plugins.kvstore.coordination.sessions import (
    WHO,
    NativeCoordination,
    client_of,
    listen_for,
    open_service,
    serve_if_here,
)
from rdzv_plugins.kvstore.native.framing import ask_statistics, is_control_store
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.kvstore.sockets.reach import look
from rdzv_plugins.plain_text import some
from rdzv_plugins.rounds.settings_check import compare
from rdzv_plugins.runtime import SYSTEM

logger = logging.getLogger(__name__)

_TTL_S = 10.0
_NAMED = 3


def recognise(request: Request, timeout: float) -> str:
    """See ``Backend.recognise``: the same for all backends that meet at a native store."""
    endpoint = parse_endpoint(request.endpoint, DEFAULT_PORT)
    token, tls = token_of(request), certificates_of(request)
    try:
        stats = ask_statistics(endpoint, timeout, token=token, tls=tls)
    except AccessRefused as error:
        if tls is not None:
            return f"something under TLS that cannot be asked: {error}"
        if token is not None:
            return "a native store of rdzv-plugins, which has another token than this process, or none"
        return "a native store of rdzv-plugins that lets in only who knows its token, or has certificates"
    runs = [str(run["name"]) for run in stats.get("runs", ())]
    store = f"a native store of rdzv-plugins (pid {stats['server']['pid']})"
    if is_control_store(stats):
        return ""  # the backend that has its keys there knows whose it is
    if not runs:
        return f"{store}, at which no job meets now"
    if len(runs) > 1:
        return f"{store}, at which runs {some(map(repr, sorted(runs)), _NAMED)} meet"
    (run,) = runs
    job: dict[str, Any] = {}
    with contextlib.suppress(RdzvError, TimeoutError, ValueError):
        service = NativeCoordination(endpoint, run, name="", who="the store", token=token, tls=tls)
        job = json.loads(job_of(service, _TTL_S, timeout) or b"{}")
    backend, by = job.get("settings", {}).get("backend"), job.get("by")
    if not backend:
        return f"{store}, at which run {run!r} meets"
    return f"the rendezvous of run {run!r} by {backend}, whose first node is {by}"


def job_of(service: NativeCoordination, ttl: float, timeout: float) -> bytes | None:
    """Return what the first node of the service's run wrote, or None if there was no such node. Closes the service.

    Opens a session and writes nothing in it: a run that nobody else has disappears with it.
    """
    with contextlib.closing(service):
        session = service.open_session(ttl, on_lost=lambda _: None, timeout=timeout)
        held, _ = session.list(JOB, timeout=timeout)
    return next((kv.value for kv in held if kv.key == JOB), None)


PATIENCE_S = 5.0  # how many seconds to wait for a slow service


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
    from rdzv_plugins.elastic.link import settings_of  # with it comes all of a node's side, which few who ask need

    options = request.options if isinstance(request.options, ElasticOptions) else ElasticOptions()
    compare(settings_of(request, name, options, SYSTEM.gethostname()), job, request.endpoint)
    return f"and run {request.run_id!r} is there, with the same settings"


def open_places(request: Request, name: str) -> CoordinationBackend:
    """The service as this node sees it, for the backend called ``name``; serves a place if that is this node's task.

    With several places it serves the first one that is its own and free: two agents on one machine serve two. Raises
    ``AddressInUse`` if ``is_host=true`` cannot be satisfied.
    """
    places = places_of(request)
    if not places:
        return open_service(request, name)
    from rdzv_plugins.elastic.failover import Places  # one endpoint does without it

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
