"""``rdzv serve``: a standalone store, on a login node or in a container, until it is told to end."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rdzv_launcher.tools.serve_tokens import Accepted
from rdzv_plugins.certificates import OPTIONS, NodeCertificates
from rdzv_plugins.endpoints import Endpoint, check_port, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.job_token import OPEN, OPTION, is_meant_to_be_open
from rdzv_plugins.kvstore.native.limits import StoreLimits, raise_file_limit
from rdzv_plugins.kvstore.sockets.listening import bind_exactly
from rdzv_plugins.options import PortRange, parse_conf, parse_options

if TYPE_CHECKING:
    from rdzv_plugins.kvstore.native.server import StoreServer

logger = logging.getLogger(__name__)

# "framed" includes those of coordination, and validate asks for nothing.
_COUNTED_ELSEWHERE = frozenset(("validate", "open_session", "put", "list", "watch", "unwatch", "delete", "keep_alive"))
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser(
        "serve", help="serve a store for TCPStore clients, and the rendezvous of any number of jobs"
    )
    parser.add_argument(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        required=True,
        metavar="HOST:PORT",
        help="where to listen; HOST is an address of this machine, or * for all of them; PORT 0: any free one",
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="event loops, at most 64; 0: half of the processors, at most 8"
    )
    parser.add_argument(
        "--metrics-port",
        "--metrics_port",
        type=int,
        default=0,
        metavar="PORT",
        help="answer /metrics by HTTP, for Prometheus, on this port of the same HOST; 0: on none (needs "
        "'rdzv-plugins[metrics]')",
    )
    parser.add_argument(
        "--rdzv-conf",
        "--rdzv_conf",
        default="",
        metavar="K=V,...",
        help="limits: "
        + ", ".join(StoreLimits.__dataclass_fields__)
        + "; token_file: the accepted tokens; cacert, cert, key: TLS",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, or SIGHUP without certificates; returns the exit code.

    With certificates, SIGHUP makes it read their files again, and that of the tokens.
    """
    from rdzv_plugins.kvstore.native.server import MOST_THREADS, StoreServer

    if not 0 <= args.threads <= MOST_THREADS:
        raise UsageError(f"--threads={args.threads} is not from 0 to {MOST_THREADS}")
    if not 0 <= args.metrics_port <= 65535:
        raise UsageError(f"--metrics-port={args.metrics_port} is not a port", remedy="1 to 65535, or 0 for none.")
    conf = parse_conf(args.rdzv_conf)
    accepted = Accepted(conf.pop(OPTION, None))
    certificates = _certificates(conf)
    limits = parse_options(StoreLimits, conf, "rdzv serve")
    endpoint = _endpoint(args.rdzv_endpoint)
    # Blocked before the server's threads start, and taken by the wait below, so that none is lost in between. A signal
    # that was ignored at the start (nohup) stays ignored.
    endings = {number for number in _END if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, endings)
    raise_file_limit()
    metrics = _listen_for_scrapes(endpoint.host, args.metrics_port)
    with (
        StoreServer(
            endpoint.host,
            endpoint.port,
            threads=args.threads,
            limits=limits,
            tokens=accepted.tokens,
            tls=certificates,
        ) as server,
        metrics(server),
    ):
        shown = Endpoint(endpoint.host or "*", server.port)
        note = " (loopback: only this machine can reach it)" if endpoint.is_loopback else ""
        if certificates is not None:
            note += ", under TLS" + (", for who has a certificate" if certificates.asks_clients else "")
        if accepted.tokens:
            note += f", for who knows one of {len(accepted.tokens)} token(s)"
        elif certificates is not None and certificates.asks_clients:
            pass
        elif not endpoint.is_loopback and not is_meant_to_be_open():
            logger.warning("the store at %s is open: %s", shown, OPEN)
        try:
            print(f"serving a store at {shown}{note}: pid {os.getpid()}, {server.threads} thread(s)", flush=True)
        except OSError as error:  # the reader is gone, but not the clients
            logger.warning("cannot say where the store is (%s): it is at %s", error.strerror, shown)
        reads_again = {signal.SIGHUP} & endings if certificates is not None else set()
        ended_by = accepted.keep_fresh(server, endings, reads_again).name
        stats = server.stats()
    requests = sum(count for name, count in stats["requests"].items() if name not in _COUNTED_ELSEWHERE)
    accepted = stats["connections"]["accepted"]
    print(f"{ended_by}: served {accepted} connection(s), {requests} request(s)", file=sys.stderr, flush=True)
    return 0


def _certificates(conf: dict[str, str]) -> NodeCertificates | None:
    """The certificates given in ``conf``, which are removed from it. Raises ``UsageError``."""
    found = NodeCertificates.given(conf.get)
    for name in OPTIONS:
        conf.pop(name, None)
    if found is not None:
        found.check()
    return found


def _listen_for_scrapes(host: str, port: int) -> Callable[[StoreServer], contextlib.AbstractContextManager[object]]:
    """Prepare to serve the metrics of a server. Raises ``AddressInUse``, ``UsageError`` or ``MissingDependency``."""
    if not port:
        return lambda server: contextlib.nullcontext()
    from rdzv_launcher.run.health import MetricsAlone
    from rdzv_launcher.run.health_server import HealthServer
    from rdzv_launcher.run.metrics import STORE, MetricsPage, check_installed, read_stores

    check_installed()
    listener = bind_exactly(host, PortRange(port, port), f"--metrics-port={port}")

    def serve(server: StoreServer) -> contextlib.AbstractContextManager[object]:
        page = MetricsPage(STORE, lambda: read_stores([("serve", server.stats())]))
        return contextlib.closing(HealthServer(MetricsAlone(page), listener))

    return serve


def _endpoint(text: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    if colon and host in ("*", ""):
        return Endpoint("", check_port(port, what="--rdzv-endpoint"))
    return parse_endpoint(text, None)
