"""What a run is doing, asked of its backend from outside."""

from __future__ import annotations

import dataclasses

from rdzv_plugins.assemble.border import blaming, misfit
from rdzv_plugins.assemble.create import created_by, with_options
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.errors import BrokenPlugin, EndpointUnreachable, UsageError
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Backend, Request, RunStatus
from rdzv_plugins.runtime import SYSTEM, Runtime


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
                f"run {request.run_id!r} at {request.endpoint}: {error}", remedy="--timeout=SECONDS waits longer."
            ) from error
    if not isinstance(found, RunStatus):
        raise misfit(entry, "its status", found, "a RunStatus")
    return found


def coordination_of(entry: Entry, request: Request) -> CoordinationBackend:
    """The service, apart from its nodes, where the run of ``request`` meets, as one more node would see it.

    Raises ``RdzvError``.
    """
    created = created_by(entry, _looking(entry, request))
    if not isinstance(created, CoordinationBackend):
        raise UsageError(
            f"nodes that meet by {entry.backend.name} cannot be asked: it is no coordination service",
            remedy="`rdzv stacks` without --rdzv-endpoint, on each of its machines, reads the workers there.",
        )
    return created


def _looking(entry: Entry, request: Request) -> Request:
    """The request with its options, provided that it says which run is meant. Raises ``UsageError``."""
    if entry.backend.meets_at == "service" and not request.is_named:
        raise UsageError(
            f"several jobs may meet at {request.endpoint}: which one is meant?", remedy="Give its --rdzv-id."
        )
    return with_options(entry, request)


def _observed(entry: Entry, request: Request, timeout: float, runtime: Runtime) -> RunStatus:
    """What a run is doing, according to the keys in its service, which every coordination backend has."""
    from rdzv_plugins.elastic.observing import observe

    created = created_by(entry, request)
    if not isinstance(created, CoordinationBackend):
        raise BrokenPlugin(
            f"{entry.record.label} meets at a service, and its backend says nothing of its runs",
            remedy="Its author can give Backend a function named status.",
        )
    found = observe(created, timeout)
    # the service may be here while the job's nodes are not
    host = runtime.gethostname()
    return dataclasses.replace(found, store_is_here=any(node.host == host for node in found.nodes[:1]))
