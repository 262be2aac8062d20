"""Which of several endpoints serves a job now: like the job's nodes, a command takes the one with its newest round."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rdzv_launcher.tools.job import Whose, run_of, statistics_of
from rdzv_plugins.certificates import NodeCertificates, certificates_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request, RunStatus
from rdzv_plugins.job_token import JobToken, token_of
from rdzv_plugins.plain_text import printable


def serving_place(host: PluginHost, request: Request, timeout: float) -> tuple[Endpoint, str]:
    """Of several endpoints in ``request``, the one of the job that is meant, and the job's id. All are asked at once.

    ``timeout`` (seconds) applies to each step. Prints on stderr which endpoint it is, and which do not answer. Raises
    ``UsageError`` for a list that nodes would refuse, or if several jobs are there, and ``EndpointUnreachable``.
    """
    from rdzv_plugins.elastic.endpoint_options import parse_places

    places = parse_places(request.endpoint)

    def runs_at(place: Endpoint) -> list[str] | RdzvError:
        whose = Whose(host, dataclasses.replace(request, endpoint=str(place)))
        try:
            return [str(each["name"]) for each in statistics_of(place, timeout, whose).get("runs", ())]
        except RdzvError as error:
            return error

    with ThreadPoolExecutor(len(places)) as pool:
        found = dict(zip(places, pool.map(runs_at, places), strict=True))
        silent = {place: each for place, each in found.items() if isinstance(each, RdzvError)}
        runs = {place: each for place, each in found.items() if not isinstance(each, RdzvError)}
        if not runs:
            raise EndpointUnreachable(
                f"none of {len(places)} endpoints can be asked: " + "; ".join(map(str, silent.values())),
                remedy="Look whether their processes live. If it is another service, give its --rdzv-backend.",
            )
        for place, error in silent.items():
            print(f"{place} cannot be asked: {printable(str(error))}", file=sys.stderr, flush=True)
        run = run_of(request, request.endpoint, sorted({each for names in runs.values() for each in names}))
        there = [place for place in places if run in runs.get(place, ())]
        token, tls = token_of(request), certificates_of(request)
        seen = list(pool.map(lambda place: _look(place, run, timeout, token, tls), there))
    serving = _newest(there, seen)
    print(f"run {run!r} is served at {serving}", file=sys.stderr, flush=True)
    return serving, run


def _look(
    place: Endpoint, run: str, timeout: float, token: JobToken | None, tls: NodeCertificates | None
) -> RunStatus | RdzvError | TimeoutError | ValueError:
    from rdzv_plugins.elastic.observing import observe
    from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

    try:
        return observe(NativeCoordination(place, run, name="rdzv", who="the store", token=token, tls=tls), timeout)
    except (RdzvError, TimeoutError, ValueError) as error:
        return error


def _newest(there: Sequence[Endpoint], seen: Sequence[RunStatus | Exception]) -> Endpoint:
    """The endpoint with the newest round. If the job can be looked at nowhere, raises the error that prevented it."""
    ranked = [
        (status.number, status.members, -at) for at, status in enumerate(seen) if not isinstance(status, Exception)
    ]
    if ranked:
        return there[-max(ranked)[2]]
    problem = next(each for each in seen if isinstance(each, Exception))
    raise EndpointUnreachable(f"{there[0]}: {problem}") from problem
