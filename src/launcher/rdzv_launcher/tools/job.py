"""The job that a command of ``rdzv`` asks: the flags that name it, where its nodes meet, and what they answer."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RdzvError, UsageError
from rdzv_plugins.interfaces import DEFAULT_RUN_ID, Request, RunStatus
from rdzv_plugins.options import did_you_mean, parse_conf
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.questions import RpcResponse
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import Found, coordination_of, recognise
from rdzv_plugins.security.certificates import certificates_of
from rdzv_plugins.security.job_token import token_of


def add_job_flags(
    parser: argparse.ArgumentParser, *, endpoint_help: str, endpoint_required: bool, timeout: float = 0
) -> None:
    """Add the flags by which ``request_of`` identifies the job; and --timeout, if that has a default (seconds)."""
    for name, metavar, text in (
        ("endpoint", "HOST:PORT", endpoint_help),
        ("backend", "NAME", "the job's backend (default: ask the endpoint)"),
        ("id", "ID", "the job's id; needed if several jobs share the endpoint"),
        ("conf", "K=V,...", "the job's options that are needed to reach the endpoint, such as TLS files"),
    ):
        required = endpoint_required and name == "endpoint"
        flags = f"--rdzv-{name}", f"--rdzv_{name}"
        parser.add_argument(*flags, required=required, default="", metavar=metavar, help=text)
    if timeout:
        text = f"time to wait for each answer (default {timeout:g})"
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
        raise EndpointUnreachable(f"no run {request.run_id!r} at {where}{near}", remedy=f"Runs there: {names}.")
    if len(runs) == 1:
        return runs[0]
    if runs:
        raise UsageError(f"several jobs at {where}: {names}", remedy="Choose one with --rdzv-id.")
    raise EndpointUnreachable(f"no job found at {where}", remedy="Pass the job's --rdzv-endpoint, not its MASTER_ADDR.")


class StoreAt:
    """The native store at the endpoint of ``request``, or whatever else listens there.

    It is asked with the token and the certificates of the job, whose files are read anew each time.
    """

    def __init__(self, host: PluginHost, request: Request) -> None:
        self._host, self.request = host, request
        self.endpoint = parse_endpoint(request.endpoint, None)
        self.found: Found | None = None
        """The backend that recognised what listens there, if it was asked."""

    def statistics(self, timeout: float) -> dict[str, Any]:
        """What the store says about itself within ``timeout`` seconds.

        Raises ``EndpointUnreachable`` if there is none, or if a backend recognises it as the store of its agents.
        """
        from rdzv_plugins.kvstore.native.framing import ask_statistics, is_control_store

        token, tls = token_of(self.request), certificates_of(self.request)
        statistics = ask_statistics(self.endpoint, timeout, stranger=self._recognise, token=token, tls=tls)
        if is_control_store(statistics) and (known := self._recognise()) is not None:
            raise known
        return statistics

    def runs(self, timeout: float) -> list[str]:
        """The jobs that meet there now. Raises ``EndpointUnreachable``."""
        return [str(each["name"]) for each in self.statistics(timeout).get("runs", ())]

    def service(self, run: str, name: str) -> CoordinationBackend:
        """The service of one of the jobs, for ``name``, who asks."""
        from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

        token, tls = token_of(self.request), certificates_of(self.request)
        return NativeCoordination(self.endpoint, run, name=name, who="the store", token=token, tls=tls)

    def _recognise(self) -> EndpointUnreachable | None:
        """The error that says what is there, if a backend recognises it: a ``Stranger``."""
        found = self.found = recognise(self._host.catalog, self.request)
        if found is None:
            return None
        return EndpointUnreachable(f"{self.request.endpoint} is {found.what}, not a native store")


def serving_store(host: PluginHost, request: Request, timeout: float) -> tuple[StoreAt, str]:
    """Of several endpoints in ``request``, the one of the job that is meant, and the job's id. All are asked at once.

    Like the job's nodes, it takes the one with the job's newest round. ``timeout`` (seconds) applies to each step.
    Prints on stderr which endpoint it is, and which do not answer. Raises ``UsageError`` for a list that nodes would
    refuse, or if several jobs are there, and ``EndpointUnreachable``.
    """
    from rdzv_plugins.elastic.observer import observe
    from rdzv_plugins.elastic.options import parse_endpoints

    places = parse_endpoints(request.endpoint)
    stores = [StoreAt(host, dataclasses.replace(request, endpoint=str(place))) for place in places]

    def asked(store: StoreAt) -> list[str] | RdzvError:
        try:
            return store.runs(timeout)
        except RdzvError as error:
            return error

    def look(store: StoreAt) -> RunStatus | Exception:
        try:
            return observe(store.service(run, "rdzv"), timeout)
        except (RdzvError, TimeoutError, ValueError) as error:
            return error

    with ThreadPoolExecutor(len(stores)) as pool:
        found = dict(zip(stores, pool.map(asked, stores), strict=True))
        silent = {store: each for store, each in found.items() if isinstance(each, RdzvError)}
        runs = {store: each for store, each in found.items() if not isinstance(each, RdzvError)}
        if not runs:
            raise EndpointUnreachable(
                f"none of the {len(stores)} endpoints answered: " + "; ".join(map(str, silent.values())),
                remedy="Check that their processes are running. For another kind of service, give its --rdzv-backend.",
            )
        for store, error in silent.items():
            print(f"no answer from {store.endpoint}: {printable(str(error))}", file=sys.stderr, flush=True)
        run = run_of(request, request.endpoint, sorted({each for names in runs.values() for each in names}))
        there = [store for store in stores if run in runs.get(store, ())]
        serving = _newest(there, list(pool.map(look, there)))
    print(f"run {run!r} is served at {serving.endpoint}", file=sys.stderr, flush=True)
    return serving, run


def _newest(there: Sequence[StoreAt], seen: Sequence[RunStatus | Exception]) -> StoreAt:
    """The store with the newest round. If the job can be looked at nowhere, raises the error that prevented it."""
    ranked = [
        (status.number, status.members, -at) for at, status in enumerate(seen) if not isinstance(status, Exception)
    ]
    if ranked:
        return there[-max(ranked)[2]]
    problem = next(each for each in seen if isinstance(each, Exception))
    raise EndpointUnreachable(f"{there[0].endpoint}: {problem}") from problem


class Meeting:
    """Finds the services of the jobs at an endpoint; for one command."""

    def __init__(self, request: Request, timeout: float, *, who: str, otherwise: str) -> None:
        """``who`` asks; ``otherwise`` says what can be done if nodes cannot be asked: a remedy."""
        self._host, self.request, self._timeout = PluginHost.load(), request, timeout
        self._who, self._otherwise = who, otherwise

    def service(self) -> tuple[CoordinationBackend, str]:
        """The service of the job that is meant, and the job's id. Raises ``RdzvError``."""
        found = self.services()
        if not isinstance(found, StoreAt):
            return found
        try:
            run = run_of(self.request, found.endpoint, found.runs(self._timeout))
        except EndpointUnreachable as error:
            raise self._with_remedy(error) from error
        return found.service(run, self._who), run

    def services(self) -> StoreAt | tuple[CoordinationBackend, str]:
        """The native store at which any number of jobs meet; elsewhere, the service of the job that is meant.

        If there are several endpoints, it is the one that serves the job now. Raises ``RdzvError``.
        """
        request = self.request
        entry = self._host.catalog.find(request.backend) if request.backend else None
        if entry is not None and entry.backend.meets_at == "service":
            return coordination_of(entry, request), request.run_id
        if "," in request.endpoint:
            try:
                store, run = serving_store(self._host, request, self._timeout)
            except EndpointUnreachable as error:
                raise self._with_remedy(error) from error
            return store.service(run, self._who), run
        store = StoreAt(self._host, request)
        try:
            store.statistics(self._timeout)
            return store
        except AccessRefused:
            raise
        except EndpointUnreachable as error:
            if store.found is None:
                raise self._with_remedy(error) from error
            found = entry or store.found.entry
            if entry is None and found.backend.meets_at == "service":
                print(f"{request.endpoint} is {store.found.what}", file=sys.stderr, flush=True)
                return coordination_of(found, request), request.run_id
            said = f"{request.endpoint} is {store.found.what}; backend {found.backend.name} does not support queries"
            raise UsageError(said, remedy=self._otherwise) from error

    def _with_remedy(self, error: RdzvError) -> EndpointUnreachable:
        remedy = f"{error.remedy} {self._otherwise}".strip()
        return EndpointUnreachable(str(error), remedy=remedy)


def ask_job(
    request: Request, kind: str, arguments: Mapping[str, Any], timeout: float, *, otherwise: str
) -> list[RpcResponse]:
    """What the nodes of the job answer. Raises ``RdzvError``.

    ``otherwise`` is a sentence that says what to do if they cannot be asked.
    """
    from rdzv_plugins.elastic.rpc import ask_from_outside

    try:
        service, run = Meeting(request, timeout, who=kind, otherwise=otherwise).service()
        answers = ask_from_outside(service, kind, arguments, timeout)
    except TimeoutError as error:
        raise EndpointUnreachable(
            f"{request.endpoint}: {error}", remedy=f"Wait longer with --timeout=SECONDS. {otherwise}"
        ) from error
    if not answers:
        raise EndpointUnreachable(
            f"run {run!r} has no node at {request.endpoint}"
            if "of" not in arguments
            else f"that node is no longer in run {run!r}",
            remedy="Check --rdzv-id; `rdzv status` shows which nodes are there.",
        )
    return answers
