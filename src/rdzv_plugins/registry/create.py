"""Turns a name and a request into the handler that the agent is given; tells from outside what a run is doing.

Also what listens at an endpoint: every backend is asked whether it is one of its own (``Backend.recognise``).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rdzv_plugins.elastic.options import ElasticOptions, with_token
from rdzv_plugins.endpoints import is_only_local, parse_endpoint, require_name
from rdzv_plugins.errors import BrokenPlugin, EndpointUnreachable, MissingDependency, RdzvError, UsageError, is_signal
from rdzv_plugins.interfaces import (
    VERDICTS,
    Backend,
    Capability,
    Created,
    RendezvousBackend,
    RendezvousHandler,
    Request,
    RunStatus,
    ServiceCheck,
)
from rdzv_plugins.kvstore.sockets.reach import dial, require_loopback
from rdzv_plugins.options import WorkerStoreOptions, parse_options
from rdzv_plugins.plain_text import printable
from rdzv_plugins.registry.catalog import Catalog, Entry
from rdzv_plugins.registry.contract_checks import CheckedCoordination, blaming, checked, misfit
from rdzv_plugins.registry.manager import PluginHost
from rdzv_plugins.registry.rendezvous import Rendezvous, meets_locally, refuse_on_several_machines
from rdzv_plugins.runtime import SYSTEM, Empty, Runtime
from rdzv_plugins.security.certificates import NodeTlsOptions, certificates_of
from rdzv_plugins.security.job_token import token_of

if TYPE_CHECKING:
    import queue

    from rdzv_plugins.coordination import CoordinationBackend

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
_TLS_S = 0.5
_LONGEST = 300

Settings = TypeVar("Settings", bound=WorkerStoreOptions)


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """The options of a backend that declares none: every key is rejected."""


def prepare(entry: Entry, request: Request) -> Request:
    """Check ``request`` against the backend and parse its options. Starts nothing.

    Raises ``UsageError``, or a ``PluginError`` if this installation cannot use it.
    """
    if request.standalone and entry.backend.meets_at == "service":
        raise UsageError(
            f"--standalone and backend {entry.backend.name} contradict each other: a single node needs no service",
            remedy=f"Leave out --standalone, or --rdzv-backend={request.backend}.",
        )
    request = with_options(entry, request)
    if entry.backend.meets_at == "service":
        require_name(request.endpoint, named=request.is_named)
    if meets_locally(request, entry.backend.meets_at):
        refuse_on_several_machines(request)
    if request.max_nodes == 1 or is_only_local(request.endpoint):
        require_loopback()
    with blaming(entry, "in its check"):
        entry.check()
    _require_token_is_used(entry.backend, request)
    if isinstance(request.options, WorkerStoreOptions) and request.options.is_native:
        _require_native_store(secures=certificates_of(request) is not None)
    _warn_undeclared(entry.backend, request)
    if Capability.ELASTIC not in entry.backend.capabilities:
        request = dataclasses.replace(request, min_nodes=request.max_nodes)
    return request


def with_options(entry: Entry, request: Request) -> Request:
    """The request with its options parsed and checked, by the backend alone. Raises ``UsageError``."""
    options = entry.backend.options or NoOptions
    with blaming(entry, "while checking the request"):
        parsed: Any = parse_options(options, request.conf, f"backend {entry.backend.name!r}")
        if isinstance(parsed, ElasticOptions):
            parsed = with_token(request, parsed)
        request = dataclasses.replace(request, options=parsed)
        if entry.backend.validate is not None:
            request = dataclasses.replace(request, target=entry.backend.validate(request))
    return request


def _require_token_is_used(backend: Backend, request: Request) -> None:
    """Refuse to leave open a job that was given a token. Raises ``UsageError``."""
    if token_of(request) is None or Capability.TOKEN in backend.capabilities:  # it is asked for, and taken, first
        return
    open_to_all = f"backend {backend.name!r} does not support tokens: anyone who reaches its ports can join the job"
    if request.max_nodes > 1:
        raise UsageError(
            f"{open_to_all}, but this job has one",
            remedy="Choose a backend with tokens (see rdzv backends), or unset RDZV_TOKEN and RDZV_TOKEN_FILE.",
        )
    logger.warning("%s. This job has one node: it is open to all users of this machine", open_to_all)


def _require_native_store(*, secures: bool) -> None:
    """Any node may have to serve it: better to say so now than when the others wait. Raises ``MissingDependency``."""
    from rdzv_plugins.kvstore.native.server import native_part

    try:
        native_part()
    except MissingDependency as error:
        raise MissingDependency(
            str(error), remedy=f"{error.remedy} Or use torch's store: --rdzv-conf store=torch."
        ) from error
    if secures:
        native_part(secures=True)


def _warn_undeclared(backend: Backend, request: Request) -> None:
    """Warn about what was requested and will not be provided."""
    if request.node_rank is not None and Capability.NODE_RANK not in backend.capabilities:
        logger.warning(
            "--node-rank=%d is ignored: backend %r assigns the ranks itself", request.node_rank, backend.name
        )
    if request.min_nodes != request.max_nodes and Capability.ELASTIC not in backend.capabilities:
        logger.warning(
            "backend %r is not elastic: it waits for all %d nodes of --nnodes=%d:%d",
            backend.name,
            request.max_nodes,
            request.min_nodes,
            request.max_nodes,
        )


def create_rendezvous(host: PluginHost, entry: Entry, request: Request, directories: Sequence[str] = ()) -> Rendezvous:
    """Make this node's part in a prepared request. May block until the endpoint is reached. Raises as ``created_by``.

    ``directories`` are those that this node writes to, for the checks that the request asks for.
    """
    request = _with_neighbours(host, entry, request)
    handler = _handler(created_by(entry, request), entry, request, host)
    local = meets_locally(request, entry.backend.meets_at)
    return Rendezvous(handler, host, request, local, directories)


def _handler(created: Created, entry: Entry, request: Request, host: PluginHost) -> RendezvousHandler:
    if isinstance(created, RendezvousHandler):
        return created
    if isinstance(created, CheckedCoordination):
        return _elastic(created, request, host)
    if isinstance(created, RendezvousBackend):
        return _dynamic(created, request)
    raise BrokenPlugin(
        f"{entry.record.label} created an object of type {type(created).__name__}",
        remedy="create() must return a RendezvousHandler, a CoordinationBackend or a RendezvousBackend.",
    )


def created_by(entry: Entry, request: Request) -> Created:
    """What the backend's ``create`` returns. Raises as ``blaming``."""
    with blaming(entry, "when it was created"):
        created = entry.backend.create(request)
    return checked(created, entry)


def preflight(host: PluginHost, entry: Entry, request: Request, held: ExitStack) -> str | None:
    """What the backend of a prepared request finds where its nodes meet; None if it has nothing to say about that.

    See ``Backend.preflight``. Raises as ``create_rendezvous``.
    """
    if entry.backend.preflight is None:
        return None
    with blaming(entry, "in its preflight"):
        found = entry.backend.preflight(_with_neighbours(host, entry, request), held)
    if not isinstance(found, str):
        raise misfit(entry, "its preflight", found, "a sentence")
    return found


def health(host: PluginHost, entry: Entry, request: Request, timeout: float) -> list[ServiceCheck] | None:
    """The health of a prepared request's service, or None if its backend cannot tell.

    ``timeout`` (seconds) applies to each step. See ``Backend.health``. Raises as ``create_rendezvous``.
    """
    if entry.backend.health is None:
        return None
    with blaming(entry, "when it was asked for the health of its service"):
        try:
            found = list(entry.backend.health(_with_neighbours(host, entry, request), timeout))
        except TimeoutError as error:
            raise EndpointUnreachable(f"{request.endpoint} did not report its health in time: {error}") from error
    for check in found:
        if not isinstance(check, ServiceCheck) or not _is_sound(check):
            raise BrokenPlugin(
                f"{entry.record.label} returned {check!r} from its health check",
                remedy="Backend.health must return rdzv_plugins.ServiceCheck objects.",
            )
    return found


def _is_sound(check: ServiceCheck) -> bool:
    texts = all(isinstance(each, str) for each in (check.name, check.text, check.remedy))
    return texts and bool(check.name) and check.verdict in VERDICTS


def _with_neighbours(host: PluginHost, entry: Entry, request: Request) -> Request:
    """Let the backend ask the others whose endpoint it has come upon."""

    def whose(endpoint: str) -> str:
        found = recognise(host.catalog, dataclasses.replace(request, endpoint=endpoint), but=entry.backend)
        return found.what if found else ""

    return dataclasses.replace(request, whose=whose)


def _dynamic(backend: RendezvousBackend, request: Request) -> RendezvousHandler:
    from rdzv_plugins.dynamic.handler import dynamic_handler
    from rdzv_plugins.dynamic.options import DynamicSettings

    given = request.options
    settings = given if isinstance(given, DynamicSettings) else _shared(DynamicSettings(), given)
    return dynamic_handler(backend, request, settings)


def _elastic(backend: CheckedCoordination, request: Request, host: PluginHost) -> RendezvousHandler:
    from rdzv_plugins.elastic.handler import ElasticHandler

    given = request.options
    options = given if isinstance(given, ElasticOptions) else with_token(request, _shared(ElasticOptions(), given))
    return ElasticHandler(
        backend, request, options, lambda nodes: host.assign_ranks(request, nodes), several=backend.several
    )


def _shared(settings: Settings, given: Any) -> Settings:
    """Return ``settings`` with what a backend's own options say about the workers' store."""
    if not isinstance(given, WorkerStoreOptions):
        return settings
    shared = {field.name: getattr(given, field.name) for field in dataclasses.fields(WorkerStoreOptions)}
    return dataclasses.replace(settings, **shared)


def can_look(backend: Backend) -> bool:
    """Whether the backend can be asked what its runs are doing."""
    return backend.status is not None or backend.meets_at == "service"


def look(entry: Entry, request: Request, timeout: float, runtime: Runtime = SYSTEM) -> RunStatus:
    """What the run of ``request`` is doing, if its backend ``can_look``; ``timeout`` (seconds) applies to each step.

    Raises ``RdzvError``.
    """
    backend = entry.backend
    request = _looking(entry, request)
    with blaming(entry, "when it was asked what a run does"):
        try:
            found = backend.status(request, timeout) if backend.status else _observed(entry, request, timeout, runtime)
        except TimeoutError as error:
            raise EndpointUnreachable(
                f"run {request.run_id!r} at {request.endpoint}: {error}", remedy="Wait longer with --timeout=SECONDS."
            ) from error
    if not isinstance(found, RunStatus):
        raise misfit(entry, "its status", found, "a RunStatus")
    return found


def coordination_of(entry: Entry, request: Request) -> CoordinationBackend:
    """The service, apart from its nodes, where the run of ``request`` meets, as one more node would see it.

    Raises ``RdzvError``.
    """
    from rdzv_plugins.coordination import CoordinationBackend

    created = created_by(entry, _looking(entry, request))
    if not isinstance(created, CoordinationBackend):
        raise UsageError(
            f"backend {entry.backend.name} does not support queries: it is not a coordination service",
            remedy="To read the workers of one machine, run `rdzv stacks` there without --rdzv-endpoint.",
        )
    return created


def _looking(entry: Entry, request: Request) -> Request:
    """The request with its options, provided that it says which run is meant. Raises ``UsageError``."""
    if entry.backend.meets_at == "service" and not request.is_named:
        raise UsageError(f"several jobs may share {request.endpoint}", remedy="Choose one with --rdzv-id.")
    return with_options(entry, request)


def _observed(entry: Entry, request: Request, timeout: float, runtime: Runtime) -> RunStatus:
    """What a run is doing, according to the keys in its service, which every coordination backend has."""
    from rdzv_plugins.coordination import CoordinationBackend
    from rdzv_plugins.elastic.observer import observe

    created = created_by(entry, request)
    if not isinstance(created, CoordinationBackend):
        raise BrokenPlugin(
            f"{entry.record.label} meets at a service, but reports nothing about its runs",
            remedy="Its author can add Backend.status.",
        )
    found = observe(created, timeout)
    # the service may be here while the job's nodes are not
    host = runtime.gethostname()
    return dataclasses.replace(found, store_is_here=any(node.host == host for node in found.nodes[:1]))


class Found(NamedTuple):
    """The backend that recognises it, and what it says."""

    entry: Entry
    what: str


def recognise(catalog: Catalog, request: Request, *, but: Backend | None = None) -> Found | None:
    """The first answer of a backend, other than ``but``, to what listens at the request's endpoint.

    Takes two seconds at most. A backend that takes longer or fails does no harm.
    """
    request = dataclasses.replace(request, options=None, target=None)
    entries = [entry for entry in catalog.entries() if entry.backend.recognise and entry.backend is not but]
    deadline = SYSTEM.monotonic() + _ANSWER_S
    if _speaks_tls(request):  # a store of ours, most likely: what others ask it in plain would make it warn of TLS
        ours = [entry for entry in entries if issubclass(entry.backend.options or object, NodeTlsOptions)]
        if found := _first_answer(ours, request, deadline):
            return found
        entries = [entry for entry in entries if entry not in ours]
    return _first_answer(entries, request, deadline)


def _first_answer(entries: Sequence[Entry], request: Request, deadline: float) -> Found | None:
    answers: queue.SimpleQueue[tuple[Entry, str]] = SYSTEM.SimpleQueue()
    for entry in entries:
        SYSTEM.Thread(target=_ask, args=(entry, request, answers), name="rdzv-whose").start()
    for _ in entries:
        try:
            entry, what = answers.get(timeout=max(0.0, deadline - SYSTEM.monotonic()))
        except Empty:
            return None
        if what:
            return Found(entry, what)
    return None


def _speaks_tls(request: Request) -> bool:
    """Whether what listens speaks TLS by the request's certificates, if it has any."""
    tls = certificates_of(request)
    if tls is None:
        return False
    try:
        endpoint = parse_endpoint(request.endpoint, None)
        dial(endpoint.host, endpoint.port, _TLS_S, tls=tls).close()
    except (RdzvError, OSError):
        return False
    return True


def _ask(entry: Entry, request: Request, answers: queue.SimpleQueue[tuple[Entry, str]]) -> None:
    assert entry.backend.recognise is not None
    what = ""
    try:
        what = printable(entry.backend.recognise(request, _ANSWER_S), _LONGEST)
    except Exception as error:
        if not is_signal(error):
            logger.debug("%s could not tell what listens at %s: %r", entry.record.label, request.endpoint, error)
    answers.put((entry, what))
