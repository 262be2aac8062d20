"""From a name and a request to the handler that torch's agent is given."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TypeVar

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.errors import BrokenPlugin, MissingDependency, PluginError, RdzvError, is_signal
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.host.discovery import install_hint
from rdzv_plugins.host.manager import PluginHost
from rdzv_plugins.interfaces import (
    Backend,
    Capability,
    EnvironmentAware,
    Failure,
    JobAware,
    MembershipAware,
    Outcome,
    RendezvousBackend,
    RendezvousHandler,
    RendezvousInfo,
    Request,
)
from rdzv_plugins.options import WorkerStoreOptions, parse_options

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=WorkerStoreOptions)


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """For a backend that declares none: every key is refused."""


def prepare(entry: Entry, request: Request) -> Request:
    """Check ``request`` against the backend and parse its options. Starts nothing. Raises ``UsageError``."""
    options = entry.backend.options or NoOptions
    try:
        parsed: Any = parse_options(options, request.conf, f"backend {entry.backend.name!r}")
        request = dataclasses.replace(request, options=parsed)
        if entry.backend.validate is not None:
            entry.backend.validate(request)
    except RdzvError:
        raise
    except Exception as error:
        raise _blame(entry, "while checking the request", error) from error
    if getattr(parsed, "store", None) in ("parallel", "tiered"):
        from rdzv_plugins.kvstore.server import native_part

        native_part()  # any node may have to serve it: better told now than when the others wait
    _warn_undeclared(entry.backend, request)
    if Capability.ELASTIC not in entry.backend.capabilities:
        request = dataclasses.replace(request, min_nodes=request.max_nodes)
    return request


def _warn_undeclared(backend: Backend, request: Request) -> None:
    """Say what was asked for and will not be had."""
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


def create_handler(host: PluginHost, entry: Entry, request: Request) -> HostedHandler:
    """Make the handler of a prepared request. May block until the endpoint is reached.

    Raises what the backend raises on purpose, ``MissingDependency`` when one of its imports is not
    installed, and ``BrokenPlugin`` for anything else.
    """
    try:
        created = entry.backend.create(request)
    except RdzvError:
        raise
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing == entry.record.value.partition(".")[0]:
            raise _blame(entry, "when it was created", error) from error
        raise MissingDependency(
            f"backend {request.backend!r} needs module {missing!r}, which is not installed",
            remedy=_install(entry.backend, missing),
        ) from error
    except Exception as error:
        if is_signal(error):
            raise
        raise _blame(entry, "when it was created", error) from error
    if isinstance(created, RendezvousHandler):
        handler = created
    elif isinstance(created, CoordinationBackend):
        handler = _elastic(created, request, host)
    elif isinstance(created, RendezvousBackend):
        handler = _dynamic(created, request)
    else:
        raise BrokenPlugin(
            f"{entry.record.label} created an object of type {type(created).__name__}",
            remedy="create() returns a RendezvousHandler, a CoordinationBackend or a RendezvousBackend.",
        )
    return HostedHandler(handler, host, request)


def _dynamic(backend: RendezvousBackend, request: Request) -> RendezvousHandler:
    from rdzv_plugins.elastic.dynamic import dynamic_handler
    from rdzv_plugins.elastic.settings import DynamicSettings

    given = request.options
    settings = given if isinstance(given, DynamicSettings) else _shared(DynamicSettings(), given)
    return dynamic_handler(backend, request, settings)


def _elastic(backend: CoordinationBackend, request: Request, host: PluginHost) -> RendezvousHandler:
    from rdzv_plugins.elastic.elastic_options import ElasticOptions
    from rdzv_plugins.elastic.handler import ElasticHandler

    given = request.options
    options = given if isinstance(given, ElasticOptions) else _shared(ElasticOptions(), given)
    return ElasticHandler(backend, request, options, lambda nodes: host.assign_ranks(request, nodes))


def _shared(settings: Settings, given: Any) -> Settings:
    """``settings`` with what a backend's own options say of the workers' store."""
    if not isinstance(given, WorkerStoreOptions):
        return settings
    shared = {field.name: getattr(given, field.name) for field in dataclasses.fields(WorkerStoreOptions)}
    return dataclasses.replace(settings, **shared)


def _install(backend: Backend, missing: str) -> str:
    return f"Install it: {backend.install}" if backend.install else install_hint(missing, None)


def _blame(entry: Entry, when: str, error: Exception) -> PluginError:
    return BrokenPlugin(f"{entry.record.label} raised {type(error).__name__} {when}: {error}")


class HostedHandler:
    """A backend's handler under the name that was asked for, with the plug-ins' hooks around each round."""

    def __init__(self, inner: RendezvousHandler, host: PluginHost, request: Request) -> None:
        self._inner = inner
        self._host = host
        self._request = request
        self._left = False

    def get_backend(self) -> str:
        """The name asked for: torch refuses a handler that calls itself otherwise."""
        return self._request.backend

    @property
    def use_agent_store(self) -> bool:
        return self._inner.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        request = self._request
        level = logging.INFO if request.max_nodes > 1 else logging.DEBUG
        self._host.before_join(request)
        logger.log(level, "run %s: joining at %s by %s", request.run_id, request.endpoint, request.backend)
        info = self._inner.next_rendezvous()
        self._host.after_join(request, info)
        where = info.bootstrap_store_info
        logger.log(
            level,
            "run %s: this is node %d of %d%s",
            request.run_id,
            info.rank,
            info.world_size,
            f"; the workers' store is at {where.master_addr} port {where.master_port}" if where else "",
        )
        return info

    def is_closed(self) -> bool:
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def note_failure(self, failure: Failure) -> None:
        if isinstance(self._inner, JobAware):
            self._inner.note_failure(failure)

    def first_failure(self) -> Failure | None:
        return self._inner.first_failure() if isinstance(self._inner, JobAware) else None

    def must_rejoin(self) -> bool:
        return self._inner.must_rejoin() if isinstance(self._inner, JobAware) else False

    def raise_if_ended(self) -> None:
        if isinstance(self._inner, JobAware):
            self._inner.raise_if_ended()

    def note_done(self) -> None:
        if isinstance(self._inner, MembershipAware):
            self._inner.note_done()

    def note_leaving(self, reason: str) -> None:
        if isinstance(self._inner, MembershipAware):
            self._inner.note_leaving(reason)

    def peer_lost(self) -> bool:
        return self._inner.peer_lost() if isinstance(self._inner, MembershipAware) else False

    def leave(self, outcome: Outcome) -> None:
        self._left = True
        try:
            if isinstance(self._inner, JobAware):
                self._inner.leave(outcome)
        finally:
            self._host.shutdown(self._request, outcome)

    def shutdown(self) -> bool:
        if not self._left:  # plain torchrun does not say how it ended
            self._left = True
            self._host.shutdown(self._request, Outcome("lost", "the launcher did not say how it ended"))
        return self._inner.shutdown()

    def worker_env(self, env: dict[str, str]) -> dict[str, str]:
        """Variables that the handler and the plug-ins add to one worker's environment; a plug-in's go first."""
        own = dict(self._inner.worker_env()) if isinstance(self._inner, EnvironmentAware) else {}
        return own | self._host.worker_env(self._request, env | own)
