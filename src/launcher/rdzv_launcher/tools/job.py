"""The job that a command of ``rdzv`` asks: the flags that name it, a request like its nodes', and who is there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from rdzv_plugins.assemble.recognition import Found, recognise
from rdzv_plugins.certificates import certificates_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import DEFAULT_RUN_ID, Request
from rdzv_plugins.job_token import token_of
from rdzv_plugins.options import did_you_mean, parse_conf
from rdzv_plugins.plain_text import some


def add_job_flags(parser: argparse.ArgumentParser, *, endpoint_help: str, endpoint_required: bool) -> None:
    """Add the flags by which ``request_of`` identifies the job."""
    parser.add_argument(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        required=endpoint_required,
        default="",
        metavar="HOST:PORT",
        help=endpoint_help,
    )
    parser.add_argument(
        "--rdzv-backend",
        "--rdzv_backend",
        default="",
        metavar="NAME",
        help="the job's backend; if unset, the endpoint is asked",
    )
    parser.add_argument(
        "--rdzv-id", "--rdzv_id", default="", metavar="ID", help="the job's id, if other jobs meet there, too"
    )
    parser.add_argument(
        "--rdzv-conf",
        "--rdzv_conf",
        default="",
        metavar="K=V,...",
        help="the job's options, as needed to reach where its nodes meet",
    )


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
