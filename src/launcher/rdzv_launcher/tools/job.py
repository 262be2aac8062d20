"""The job that a command of ``rdzv`` asks: the flags that name it, where its nodes meet, and what they answer."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from rdzv_plugins.assemble.looking import coordination_of
from rdzv_plugins.assemble.recognition import Found, recognise
from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RdzvError, UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import DEFAULT_RUN_ID, Request, RunStatus
from rdzv_plugins.job_token import token_of
from rdzv_plugins.options import did_you_mean, parse_conf
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.questions import NodeAnswer


def add_job_flags(
    parser: argparse.ArgumentParser, *, endpoint_help: str, endpoint_required: bool, timeout: float = 0
) -> None:
    """Add the flags by which ``request_of`` identifies the job; and --timeout, if that has a default (seconds)."""
    for name, metavar, text in (
        ("endpoint", "HOST:PORT", endpoint_help),
        ("backend", "NAME", "the job's backend; if unset, the endpoint is asked"),
        ("id", "ID", "the job's id, if other jobs meet there, too"),
        ("conf", "K=V,...", "the job's options, as needed to reach where its nodes meet"),
    ):
        required = endpoint_required and name == "endpoint"
        flags = f"--rdzv-{name}", f"--rdzv_{name}"
        parser.add_argument(*flags, required=required, default="", metavar=metavar, help=text)
    if timeout:
        text = f"how long to wait for each answer (default {timeout:g})"
        parser.add_argument("--timeout", type=float, default=timeout, metavar="SECONDS", help=text)


def request_of(args: argparse.Namespace) -> Request:
    """The request that a node of the job would make. Raises whatever ``parse_conf`` raises, and ``UsageError``."""
    request = Request(
        backend=args.rdzv_backend,
        run_id=args.rdzv_id or DEFAULT_RUN_ID,
        endpoint=args.rdzv_endpoint,
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=0,
        conf=MappingProxyType(parse_conf(args.rdzv_conf)),
        given=frozenset({"run_id"} if args.rdzv_id else ()),
    )
    if (certificates := certificates_of(request)) is not None:
        certificates.check_client()
    return request


def run_of(request: Request, where: object, runs: Sequence[str]) -> str:
    """Which of ``runs`` at ``where`` is meant. Raises ``UsageError`` or ``EndpointUnreachable``, naming the runs."""
    names = some(map(repr, sorted(runs))) or "none"
    if request.is_named:
        if request.run_id in runs:
            return request.run_id
        near = did_you_mean(request.run_id, runs)
        raise EndpointUnreachable(f"run {request.run_id!r} is not at {where}{near}", remedy=f"The runs there: {names}.")
    if len(runs) == 1:
        return runs[0]
    if runs:
        raise UsageError(f"several jobs meet at {where}: {names}", remedy="Give the --rdzv-id of one of them.")
    raise EndpointUnreachable(
        f"no job meets at {where}", remedy="It is --rdzv-endpoint of the job that is asked for, not MASTER_ADDR."
    )


class Whose:
    """Asks all backends what an endpoint is, for ``statistics_of``; ``found`` is the one that recognised it.

    ``token`` and ``tls`` are the job's.
    """

    def __init__(self, host: PluginHost, request: Request) -> None:
        self._host, self._request = host, request
        self.token, self.tls = token_of(request), certificates_of(request)
        self.found: Found | None = None

    def __call__(self) -> EndpointUnreachable | None:
        """The error that says what is at the endpoint, if a backend recognises it: a ``Stranger``."""
        self.found = recognise(self._host.catalog, self._request)
        if self.found is None:
            return None
        return EndpointUnreachable(f"at {self._request.endpoint} is {self.found.what}, and no native store")


def statistics_of(endpoint: Endpoint, timeout: float, whose: Whose) -> dict[str, Any]:
    """What the native store at ``endpoint`` says about itself within ``timeout`` seconds.

    Raises ``EndpointUnreachable`` if there is none, or if a backend recognises it as the store of its agents.
    """
    from rdzv_plugins.kvstore.native.framing import ask_statistics, is_control_store

    statistics = ask_statistics(endpoint, timeout, stranger=whose, token=whose.token, tls=whose.tls)
    if is_control_store(statistics) and (known := whose()) is not None:
        raise known
    return statistics


def runs_at(host: PluginHost, request: Request, place: Endpoint, timeout: float) -> list[str]:
    """The jobs now at a native store. Raises ``EndpointUnreachable``."""
    whose = Whose(host, dataclasses.replace(request, endpoint=str(place)))
    return [str(each["name"]) for each in statistics_of(place, timeout, whose).get("runs", ())]


def service_at(place: Endpoint, run: str, name: str, request: Request) -> CoordinationBackend:
    """The service of a run at a native store, for ``name``, who asks with the token and the certificates of a job."""
    from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

    token, tls = token_of(request), certificates_of(request)
    return NativeCoordination(place, run, name=name, who="the store", token=token, tls=tls)


def serving_place(host: PluginHost, request: Request, timeout: float) -> tuple[Endpoint, str]:
    """Of several endpoints in ``request``, the one of the job that is meant, and the job's id. All are asked at once.

    Like the job's nodes, it takes the one with the job's newest round. ``timeout`` (seconds) applies to each step.
    Prints on stderr which endpoint it is, and which do not answer. Raises ``UsageError`` for a list that nodes would
    refuse, or if several jobs are there, and ``EndpointUnreachable``.
    """
    from rdzv_plugins.elastic.observing import observe
    from rdzv_plugins.elastic.options import parse_places

    places = parse_places(request.endpoint)

    def asked(place: Endpoint) -> list[str] | RdzvError:
        try:
            return runs_at(host, request, place, timeout)
        except RdzvError as error:
            return error

    def look(place: Endpoint) -> RunStatus | Exception:
        try:
            return observe(service_at(place, run, "rdzv", request), timeout)
        except (RdzvError, TimeoutError, ValueError) as error:
            return error

    with ThreadPoolExecutor(len(places)) as pool:
        found = dict(zip(places, pool.map(asked, places), strict=True))
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
        serving = _newest(there, list(pool.map(look, there)))
    print(f"run {run!r} is served at {serving}", file=sys.stderr, flush=True)
    return serving, run


def _newest(there: Sequence[Endpoint], seen: Sequence[RunStatus | Exception]) -> Endpoint:
    """The endpoint with the newest round. If the job can be looked at nowhere, raises the error that prevented it."""
    ranked = [
        (status.number, status.members, -at) for at, status in enumerate(seen) if not isinstance(status, Exception)
    ]
    if ranked:
        return there[-max(ranked)[2]]
    problem = next(each for each in seen if isinstance(each, Exception))
    raise EndpointUnreachable(f"{there[0]}: {problem}") from problem


class Meeting:
    """Finds the services of the jobs at an endpoint; for one command."""

    def __init__(self, request: Request, timeout: float, *, who: str, otherwise: str) -> None:
        """``who`` asks; ``otherwise`` says what can be done if nodes cannot be asked: a remedy."""
        self._host, self._request, self._timeout = PluginHost.load(), request, timeout
        self._who, self._otherwise = who, otherwise

    def service(self) -> tuple[CoordinationBackend, str]:
        """The service of the job that is meant, and the job's id. Raises ``RdzvError``."""
        found = self.services()
        if not isinstance(found, Endpoint):
            return found
        try:
            return self.at(found, run_of(self._request, found, self.runs(found)))
        except EndpointUnreachable as error:
            raise self._with_remedy(error) from error

    def services(self) -> Endpoint | tuple[CoordinationBackend, str]:
        """The native store at which any number of jobs meet; elsewhere, the service of the job that is meant.

        If there are several endpoints, it is the one that serves the job now. Raises ``RdzvError``.
        """
        request = self._request
        entry = self._host.catalog.find(request.backend) if request.backend else None
        if entry is not None and entry.backend.meets_at == "service":
            return coordination_of(entry, request), request.run_id
        if "," in request.endpoint:
            try:
                return self.at(*serving_place(self._host, request, self._timeout))
            except EndpointUnreachable as error:
                raise self._with_remedy(error) from error
        whose = Whose(self._host, request)
        endpoint = parse_endpoint(request.endpoint, None)
        try:
            statistics_of(endpoint, self._timeout, whose)
            return endpoint
        except AccessRefused:
            raise
        except EndpointUnreachable as error:
            found = entry or (whose.found.entry if whose.found is not None else None)
            if found is None or whose.found is None:
                raise self._with_remedy(error) from error
            if entry is None and found.backend.meets_at == "service":
                print(f"{request.endpoint} is {whose.found.what}", file=sys.stderr, flush=True)
                return coordination_of(found, request), request.run_id
            said = f"{whose.found.what}: nodes that meet by {found.backend.name} cannot be asked"
            raise UsageError(said, remedy=self._otherwise) from error

    def runs(self, endpoint: Endpoint) -> list[str]:
        """The jobs now at a native store. Raises ``EndpointUnreachable``."""
        return runs_at(self._host, self._request, endpoint, self._timeout)

    def at(self, endpoint: Endpoint, run: str) -> tuple[CoordinationBackend, str]:
        """The service of one of the jobs at a native store."""
        return service_at(endpoint, run, self._who, self._request), run

    def _with_remedy(self, error: RdzvError) -> EndpointUnreachable:
        remedy = f"{error.remedy} Or: {self._otherwise}" if error.remedy else f"Or: {self._otherwise}"
        return EndpointUnreachable(str(error), remedy=remedy)


def ask_job(
    request: Request, kind: str, arguments: Mapping[str, Any], timeout: float, *, otherwise: str
) -> list[NodeAnswer]:
    """What the nodes of the job answer. Raises ``RdzvError``.

    ``otherwise`` is a sentence that says what to do if they cannot be asked.
    """
    from rdzv_plugins.elastic.asking import ask_from_outside

    try:
        service, run = Meeting(request, timeout, who=kind, otherwise=otherwise).service()
        answers = ask_from_outside(service, kind, arguments, timeout)
    except TimeoutError as error:
        raise EndpointUnreachable(
            f"{request.endpoint}: {error}", remedy=f"--timeout=SECONDS waits longer. Or: {otherwise}"
        ) from error
    if not answers:
        raise EndpointUnreachable(
            f"no node of run {run!r} is at {request.endpoint}"
            if "of" not in arguments
            else f"that node is not in run {run!r} any more",
            remedy="`rdzv status` says who is there. Check --rdzv-id.",
        )
    return answers
