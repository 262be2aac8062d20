"""``rdzv serve``: a standalone store, on a login node or in a container, until it is told to end."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from rdzv_plugins.endpoints import Endpoint, check_port, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kvstore.native.limits import StoreLimits, raise_file_limit
from rdzv_plugins.kvstore.sockets.listening import bind_exactly
from rdzv_plugins.options import PortRange, parse_conf, parse_options
from rdzv_plugins.plain_text import many
from rdzv_plugins.runtime import OwnThread
from rdzv_plugins.security.certificates import OPTIONS, NodeCertificates, stamp_of
from rdzv_plugins.security.job_token import (
    FILE_VARIABLE,
    OPEN,
    OPTION,
    AcceptedToken,
    accepted_tokens,
    is_meant_to_be_open,
)

if TYPE_CHECKING:
    from rdzv_plugins.kvstore.native.server import StoreServer


logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between two looks at the file."""


class Accepted:
    """The tokens of one file, or of the environment. Whoever made it keeps them fresh on the main thread."""

    def __init__(self, path: str | None) -> None:
        """``path`` is as given by ``--rdzv-conf``. Raises ``UsageError`` like ``accepted_tokens``."""
        self._path = path
        self._file = path if path is not None else os.environ.get(FILE_VARIABLE, "")
        """Empty: there is none."""
        self._lock = threading.Lock()
        self._seen = stamp_of(self._file)
        self.tokens: tuple[AcceptedToken, ...] = accepted_tokens(path) or ()

    def keep_fresh(
        self, server: StoreServer, endings: Collection[signal.Signals], reads_again: Collection[signal.Signals]
    ) -> signal.Signals:
        """Pass the file's tokens to ``server`` when it has changed; returns which of the blocked ``endings`` arrived.

        Signals in ``reads_again`` end nothing: all files are read again.
        """
        over = threading.Event()
        if self._file and self.tokens:
            OwnThread(target=self._keep_looking, name="rdzv-tokens", args=(server, over)).start()
        try:
            # without a time limit: one that ends while the process is stopped has CPython's sigtimedwait return what
            # no signal has written
            while (came := signal.Signals(signal.sigwaitinfo(endings).si_signo)) in reads_again:
                server.read_certificates()
                self._read_if_changed(server, anyway=True)
            return came
        finally:
            over.set()

    def _keep_looking(self, server: StoreServer, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            try:
                self._read_if_changed(server)
            except Exception:  # it looks again: a thread that has ended would leave the tokens as they are for good
                logger.exception("could not check %s for changes", self._file)

    def _read_if_changed(self, server: StoreServer, *, anyway: bool = False) -> None:
        with self._lock:
            seen = stamp_of(self._file)
            if not (self._file and self.tokens) or (seen == self._seen and not anyway):
                return
            self._seen = seen
            try:
                self.tokens = accepted_tokens(self._path) or self.tokens
            except UsageError as error:
                logger.warning("%s; keeping the previous tokens", error)
                return
            server.accept_tokens(self.tokens)
            logger.warning("%s has changed: now accepting %s", self._file, many(len(self.tokens), "token"))


# "framed" includes those of coordination, and validate asks for nothing.
_COUNTED_ELSEWHERE = frozenset(("validate", "open_session", "put", "list", "watch", "unwatch", "delete", "keep_alive"))
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    what = "serve a store for TCPStore clients, and the rendezvous of any number of jobs"
    add = commands.add_parser("serve", help=what).add_argument
    where = "where to listen: HOST is an address of this machine, or * for all; PORT 0: any free port"
    add("--rdzv-endpoint", "--rdzv_endpoint", required=True, metavar="HOST:PORT", help=where)
    threads = "number of event loops, at most 64 (default 0: half of the processors, at most 8)"
    add("--threads", type=int, default=0, help=threads)
    metrics = (
        "serve /metrics for Prometheus over HTTP on this port of HOST (default 0: off; needs 'rdzv-plugins[metrics]')"
    )
    add("--metrics-port", "--metrics_port", type=int, default=0, metavar="PORT", help=metrics)
    limits = ", ".join(StoreLimits.__dataclass_fields__)
    conf = f"limits: {limits}; token_file: accepted tokens; cacert, cert, key: TLS"
    add("--rdzv-conf", "--rdzv_conf", default="", metavar="K=V,...", help=conf)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, or SIGHUP without certificates; returns the exit code.

    With certificates, SIGHUP makes it read their files again, and that of the tokens.
    """
    from rdzv_plugins.kvstore.native.server import MOST_THREADS, StoreServer

    if not 0 <= args.threads <= MOST_THREADS:
        raise UsageError(f"--threads={args.threads} is not between 0 and {MOST_THREADS}")
    if not 0 <= args.metrics_port <= 65535:
        raise UsageError(f"--metrics-port={args.metrics_port} is not a port", remedy="Give 1 to 65535, or 0 for none.")
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
        asks_clients = certificates is not None and certificates.asks_clients
        if certificates is not None:
            note += ", TLS" + (" with client certificates" if asks_clients else "")
        if accepted.tokens:
            note += f", {many(len(accepted.tokens), 'token')} accepted"
        elif not (asks_clients or endpoint.is_loopback or is_meant_to_be_open()):
            logger.warning("the store at %s is open: %s", shown, OPEN)
        try:
            print(f"serving a store at {shown}{note}: pid {os.getpid()}, {many(server.threads, 'thread')}", flush=True)
        except OSError as error:  # the reader is gone, but not the clients
            logger.warning("could not print the address (%s): the store is at %s", error.strerror, shown)
        reads_again = {signal.SIGHUP} & endings if certificates is not None else set()
        ended_by = accepted.keep_fresh(server, endings, reads_again).name
        stats = server.stats()
    requests = sum(count for name, count in stats["requests"].items() if name not in _COUNTED_ELSEWHERE)
    served = f"{many(stats['connections']['accepted'], 'connection')}, {many(requests, 'request')}"
    print(f"{ended_by}: served {served}", file=sys.stderr, flush=True)
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
    from rdzv_launcher.run.health import HealthServer, metrics_alone
    from rdzv_launcher.run.metrics import STORE, MetricsPage, check_installed, read_stores

    check_installed()
    listener = bind_exactly(host, PortRange(port, port), f"--metrics-port={port}")

    def serve(server: StoreServer) -> contextlib.AbstractContextManager[object]:
        page = MetricsPage(STORE, lambda: read_stores([("serve", server.stats())]))
        return contextlib.closing(HealthServer(metrics_alone(page), listener))

    return serve


def _endpoint(text: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    if colon and host in ("*", ""):
        return Endpoint("", check_port(port, what="--rdzv-endpoint"))
    return parse_endpoint(text, None)
