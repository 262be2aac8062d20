"""A native store as an endpoint, seen from outside: what the backends that meet at one can say about it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.elastic.endpoint_options import DEFAULT_PORT
from rdzv_plugins.elastic.keys import JOB
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import AccessRefused, RdzvError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.framing import ask_statistics, is_control_store
from rdzv_plugins.plain_text import some

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
