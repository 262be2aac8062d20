"""What is listening at an endpoint: a run of the elastic rendezvous as its keys show it, once or continuously.

At an endpoint that a native store serves, also: who answers there, asked from outside; would the job accept this node;
and the service as this node sees it, which it may have to serve.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.options import DEFAULT_PORT, ElasticOptions, endpoints_of
from rdzv_plugins.elastic.retry import known_until
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import AccessRefused, ConnectionLost, RdzvError
from rdzv_plugins.interfaces import NodeStatus, Request, RunStatus
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
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.security.certificates import certificates_of
from rdzv_plugins.security.job_token import token_of

logger = logging.getLogger(__name__)

_TTL_S = 10.0
_READ = (keys.ALL, keys.NODES, keys.MEMBERS, keys.JOB)
_WATCHED = (*_READ, keys.FAILURES, keys.RESTARTS)


def observe(service: CoordinationBackend, timeout: float) -> RunStatus:
    """Return what the run is doing, for a service served by its first node. Writes no key; closes ``service``.

    ``timeout`` (seconds) applies to each step. Raises ``RdzvError``, ``TimeoutError`` or ``ValueError``.
    """
    try:
        session = service.open_session(_TTL_S, on_lost=lambda _: None, timeout=timeout)
        near = session.local_addr == session.remote_addr
        held = {prefix: session.list(prefix, timeout=timeout)[0] for prefix in _READ}
    finally:
        service.close()
    return _found(held, near)


class JobObserver:
    """Watches a run in a session of its own, and holds the run's keys as they are now. Thread-safe.

    It makes no requests once it is set up: the service pushes what changes. While it is open it counts as a session of
    the run, so a service forgets the keys only after it was closed.
    """

    def __init__(
        self,
        service: CoordinationBackend,
        on_change: Callable[[Event, KeyValue | None], None],
        on_lost: Callable[[ConnectionLost], None],
        timeout: float,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """``on_change`` gets each change from now on, with the previous value of the key; it must return at once.

        ``on_lost`` is the one of ``open_session``; ``timeout`` (seconds) applies to each step. Takes over ``service``,
        and closes it if this raises ``RdzvError`` or ``TimeoutError``.
        """
        self._service, self._on_change, self._runtime = service, on_change, runtime
        self._lock = self._runtime.Lock()
        self.version = 0  # grows with every change
        self._held: dict[str, dict[str, KeyValue]] = {prefix: {} for prefix in _WATCHED}
        with contextlib.ExitStack() as undo:
            undo.callback(service.close)
            self.session = service.open_session(_TTL_S, on_lost=on_lost, timeout=timeout)
            for prefix in _WATCHED:
                begin = functools.partial(self._begin, prefix)
                keys.list_and_watch(self.session, prefix, begin, self._hear, lambda request: request(timeout))
            undo.pop_all()

    def _begin(self, prefix: str, held: Sequence[KeyValue]) -> None:
        with self._lock:
            self._held[prefix] = {kv.key: kv for kv in held}

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            prefix = next(each for each in _WATCHED if event.key.startswith(each))
            with self._lock:
                before = self._held[prefix].pop(event.key, None)
                if event.value is not None:
                    self._held[prefix][event.key] = KeyValue(event.key, event.value, event.revision)
                self.version += 1
            self._on_change(event, before)

    @property
    def silent_s(self) -> float:
        """For how long the service has said nothing, as far as the session can tell."""
        until = known_until(self.session, math.inf)
        return max(0.0, self._runtime.now() - (until - self.session.ttl))

    def held(self, prefix: str) -> list[KeyValue]:
        """The keys below one of ``keys.ALL``, ``NODES``, ``MEMBERS``, ``JOB``, ``FAILURES`` and ``RESTARTS``."""
        with self._lock:
            return list(self._held[prefix].values())

    def status(self) -> RunStatus:
        """What the run is doing. Sends nothing. Raises ``ValueError`` for keys of another version."""
        near = self.session.local_addr == self.session.remote_addr
        return _found({prefix: self.held(prefix) for prefix in _READ}, near)

    def close(self) -> None:
        """Stop watching. No call to ``on_change`` begins after this returns."""
        self._service.close()


def _found(held: Mapping[str, Sequence[KeyValue]], near: bool) -> RunStatus:
    values = {kv.key: kv.value for kv in held[keys.ALL]}
    declared = keys.decode(keys.Round, values[keys.ROUND]) if keys.ROUND in values else keys.Round()
    there = {kv.key.removeprefix(keys.MEMBERS) for kv in held[keys.MEMBERS]}
    members = {member.node_id: member for member in keys.readable(keys.Member, held[keys.MEMBERS])}
    leader = keys.decode(keys.LeaderInfo, values[keys.LEADER]).node_id if keys.LEADER in values else ""
    told = keys.readable(keys.Assignment, held[keys.NODES])
    places = sorted(
        (place for place in told if place.is_place and place.round == declared.number), key=lambda place: place.rank
    )
    store = next((Endpoint(place.master_addr, place.master_port) for place in places if place.master_addr), None)
    return RunStatus(
        number=declared.number,
        state=declared.state,
        reason=declared.reason,
        progress=values.get(keys.PROGRESS, b"").decode(errors="backslashreplace"),
        members=len(there),
        leader=members[leader].name if leader in members else leader,
        nodes=tuple(
            NodeStatus(
                place.rank, place.host, place.pid, place.nproc, place.address, place.node_id in there, place.domain
            )
            for place in places
        ),
        store=str(store) if store is not None and declared.state == "complete" else "",
        store_is_here=near,
        store_kind=_kind_of_store(held[keys.JOB]),
    )


def _kind_of_store(job: Sequence[KeyValue]) -> str:
    """The setting ``store`` of the job; empty if it cannot be told."""
    try:
        return str(next(json.loads(kv.value)["settings"]["store"] for kv in job))
    except (StopIteration, ValueError, TypeError, KeyError):
        return ""


_NAMED = 3


def recognise(request: Request, timeout: float) -> str:
    """See ``Backend.recognise``: the same for all backends that meet at a native store."""
    endpoint = parse_endpoint(request.endpoint, DEFAULT_PORT)
    token, tls = token_of(request), certificates_of(request)
    try:
        stats = ask_statistics(endpoint, timeout, token=token, tls=tls)
    except AccessRefused as error:
        if tls is not None:
            return f"something under TLS that does not answer: {error}"
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
        held, _ = session.list(keys.JOB, timeout=timeout)
    return next((kv.value for kv in held if kv.key == keys.JOB), None)


PATIENCE_S = 5.0  # how many seconds to wait for a slow service


def at_native_store(request: Request, name: str, held: contextlib.ExitStack) -> str:
    """See ``Backend.preflight``; this is for the backend called ``name``."""
    if several := endpoints_of(request):
        each = (dataclasses.replace(request, target=one, endpoint=str(one)) for one in several)
        return "; ".join(filter(None, [at_native_store(one, name, held) for one in each]))
    endpoint: Endpoint = request.target
    listener = listen_for(request, endpoint)
    if listener is not None:
        held.enter_context(listener)
        return f"this node will serve {endpoint}"
    if not look(endpoint, WHO):
        return ""
    job = job_of(client_of(endpoint, request, name), request.options.ttl, PATIENCE_S)
    return f"a native store answers at {endpoint}, {with_job(request, name, job)}"


def with_job(request: Request, name: str, job: bytes | None) -> str:
    """What is known about the run, whose first node wrote ``job``. Raises ``SettingsDiffer`` as a launch would."""
    if job is None:
        return f"and run {request.run_id!r} has no node yet"
    from rdzv_plugins.elastic.node_session import (
        settings_of,  # with it comes all of a node's side, which few who ask need
    )

    options = request.options if isinstance(request.options, ElasticOptions) else ElasticOptions()
    compare(settings_of(request, name, options, SYSTEM.gethostname()), job, request.endpoint)
    return f"and run {request.run_id!r} is there, with the same settings"


def open_endpoints(request: Request, name: str) -> CoordinationBackend:
    """The service as this node sees it, for the backend called ``name``; serves it if that is this node's task.

    With several endpoints it serves the first one that is its own and free: two agents on one machine serve two. Raises
    ``AddressInUse`` if ``is_host=true`` cannot be satisfied.
    """
    endpoints = endpoints_of(request)
    if not endpoints:
        return open_service(request, name)
    from rdzv_plugins.elastic.failover import FailoverBackend  # one endpoint does without it

    # one that falls silent is left when a session there has ended: the others can serve
    patient = dataclasses.replace(request, options=dataclasses.replace(request.options, outage_timeout=1.0))
    servers: dict[int, StoreServer] = {}
    for at, endpoint in enumerate(endpoints):
        if not servers and (server := serve_if_here(request, endpoint)) is not None:
            servers[at] = server
    services = [client_of(each, patient, name, servers.get(at)) for at, each in enumerate(endpoints)]
    if request.max_nodes == 2:
        logger.warning(
            "with two nodes neither is a majority: if one disappears without a trace (its machine or network, not only "
            "its process), the job goes on only if that was node 0. Use a third node"
        )
    return FailoverBackend(endpoints, services, next(iter(servers), None), request.options.ttl, SYSTEM)
