"""The nodes of a job, asked through the place where they meet."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rdzv_launcher.tools.job import Whose, statistics_of
from rdzv_plugins.assemble.looking import coordination_of
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import EndpointUnreachable, RdzvError, UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Request
from rdzv_plugins.questions import NodeAnswer

HERE = "`rdzv stacks` without --rdzv-endpoint, on each of its machines, reads the workers there."
_NAMED = 8


def ask_job(request: Request, arguments: Mapping[str, Any], timeout: float) -> list[NodeAnswer]:
    """What the nodes of the job answer to ``stacks``. Raises ``RdzvError``."""
    from rdzv_plugins.elastic.asking import ask_from_outside
    from rdzv_plugins.questions import STACKS

    host = PluginHost.load()
    try:
        service, run = _service(host, request, timeout)
        answers = ask_from_outside(service, STACKS, arguments, timeout)
    except TimeoutError as error:
        raise EndpointUnreachable(
            f"{request.endpoint}: {error}", remedy=f"--timeout=SECONDS waits longer. Or: {HERE}"
        ) from error
    if not answers:
        raise EndpointUnreachable(
            f"no node of run {run!r} is at {request.endpoint}",
            remedy="`rdzv status` says who is there. Check --rdzv-id.",
        )
    return answers


def _service(host: PluginHost, request: Request, timeout: float) -> tuple[CoordinationBackend, str]:
    """The service as one more node sees it, and the run's id."""
    entry = host.catalog.find(request.backend) if request.backend else None
    if entry is not None and entry.backend.meets_at == "service":
        return coordination_of(entry, request), request.run_id
    whose = Whose(host, request)
    try:
        return _native(parse_endpoint(request.endpoint, None), request, timeout, whose)
    except EndpointUnreachable as error:
        found = entry or (whose.found.entry if whose.found is not None else None)
        if found is None:
            raise _with_remedy(error) from error
        if entry is None and found.backend.meets_at == "service" and whose.found is not None:
            print(f"{request.endpoint} is {whose.found.what}", file=sys.stderr, flush=True)
            return coordination_of(found, request), request.run_id
        if whose.found is None:
            raise _with_remedy(error) from error
        raise _cannot(found, whose.found.what) from error


def _native(endpoint: Endpoint, request: Request, timeout: float, whose: Whose) -> tuple[CoordinationBackend, str]:
    from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

    stats = statistics_of(endpoint, timeout, whose)
    run = _run(endpoint, request, [str(each["name"]) for each in stats.get("runs", ())])
    return NativeCoordination(endpoint, run, name="stacks", who="the store"), run


def _run(endpoint: Endpoint, request: Request, runs: Sequence[str]) -> str:
    """Which of the ``runs`` is meant."""
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    names = (", ".join(map(repr, sorted(runs)[:_NAMED])) or "none") + more
    if request.is_named:
        if request.run_id in runs:
            return request.run_id
        raise EndpointUnreachable(f"run {request.run_id!r} is not at {endpoint}", remedy=f"The runs there: {names}.")
    if len(runs) == 1:
        return runs[0]
    if runs:
        raise UsageError(f"several jobs meet at {endpoint}: {names}", remedy="Give the --rdzv-id of one of them.")
    raise EndpointUnreachable(
        f"no job meets at {endpoint}", remedy="It is --rdzv-endpoint of the job that is asked for, not MASTER_ADDR."
    )


def _cannot(entry: Entry, what: str) -> UsageError:
    return UsageError(f"{what}: nodes that meet by {entry.backend.name} cannot be asked", remedy=HERE)


def _with_remedy(error: RdzvError) -> EndpointUnreachable:
    remedy = f"{error.remedy} Or: {HERE}" if error.remedy else f"Or: {HERE}"
    return EndpointUnreachable(str(error), remedy=remedy)
