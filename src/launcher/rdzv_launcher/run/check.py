"""``rdzv-run --check``: what can be known before the start, one line for each finding, and how the launch would end.

A check is a function that says what it has found. It raises the ``RdzvError`` with which the launch would end; if it
logs a warning, the check counts as one. So each step of a launch can be used as a check; further ones go into
``CHECKS``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from rdzv_launcher.console import of_the_system, warnings_collected
from rdzv_launcher.run.devices import accelerators
from rdzv_launcher.run.options import RunOptions
from rdzv_launcher.run.preparation import Preparation
from rdzv_launcher.version import version_line
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.endpoints import is_only_local
from rdzv_plugins.errors import AddressInUse, MissingDependency, RdzvError
from rdzv_plugins.kvstore.native.server import native_part
from rdzv_plugins.kvstore.sockets.listening import PortAllocator, bind
from rdzv_plugins.kvstore.sockets.reach import default_address, is_own_address
from rdzv_plugins.options import WorkerStoreOptions
from rdzv_plugins.plain_text import printable
from rdzv_plugins.registry.create import preflight

logger = logging.getLogger(__name__)

_LONGEST = 4000


class Checked(Preparation):
    """A launch as far as its preparation has come, and what is held open until everything is checked."""

    def __init__(self, args: RunOptions, held: contextlib.ExitStack) -> None:
        super().__init__(args)
        self.held = held


class NotKnown(Exception):
    """Nothing can be said about it here; the text says why."""


@dataclass(frozen=True)
class Check:
    """Makes one line. It is left out if one of the checks in ``after``, on which it builds, has failed."""

    name: str
    find: Callable[[Checked], str]
    after: tuple[str, ...] = ()


def _versions(start: Checked) -> str:
    try:
        native_part()
    except MissingDependency:
        logger.warning("%s", version_line())
    return version_line()


def _plugins(start: Checked) -> str:
    start.host.report_problems(start.args.rdzv_backend or "")
    return "no plug-in is broken"


def _devices(start: Checked) -> str:
    workers = start.request.nproc_per_node
    count, kind = accelerators()
    if not count:
        return f"torch sees no accelerator; workers: {workers}"
    if workers > count:
        logger.warning("%d workers share %d %s device(s), but usually each needs its own", workers, count, kind)
    return f"{count} {kind} device(s), workers: {workers}"


def _address(start: Checked) -> str:
    request = start.request
    if request.local_addr and not is_own_address(request.local_addr):
        logger.warning(
            "--local-addr=%s is not an address of this machine, which works only behind address translation",
            request.local_addr,
        )
    if request.max_nodes == 1:
        return "there is no other node"
    if is_only_local(request.endpoint):
        logger.warning(
            "nodes on other machines cannot reach --rdzv-endpoint=%s: use one of this machine's, on all nodes",
            request.endpoint,
        )
    return f"others reach this node at {request.local_addr or default_address()}"


def _endpoint(start: Checked) -> str:
    found = preflight(start.host, start.entry, start.request, start.held)
    if found is None:
        raise NotKnown(f"backend {start.entry.backend.name!r} does not say what it finds there")
    return found


def _worker_ports(start: Checked) -> str:
    """Find a port for the workers' store while the endpoint's is held: one port is not enough for both."""
    request, options = start.request, start.request.options
    if not isinstance(options, WorkerStoreOptions):
        raise NotKnown(f"backend {start.entry.backend.name!r} has no option worker_ports")
    ports = options.worker_ports
    if ports.last == 0:
        return "the workers' store takes any free port"
    if request.node_rank:
        raise NotKnown("node rank 0 serves the workers' store, not this node")
    host = "127.0.0.1" if request.standalone or is_only_local(request.endpoint) else ""
    needed = 2 if isinstance(options, ElasticOptions) and options.fanout else 1  # the store, and otherwise a proxy
    try:
        for _ in range(needed):
            start.held.enter_context(bind(host, PortAllocator(ports), "the workers' store"))
    except AddressInUse as error:
        if request.max_nodes == 1 or request.node_rank == 0:
            raise
        logger.warning("%s; that ends the job if this node gets rank 0", error)
    return f"worker_ports={ports}: enough are free"


def _health(start: Checked) -> str:
    start.host.before_join(start.request)
    return "no plug-in keeps this node out"


CHECKS = (
    Check("versions", _versions),
    Check("plug-ins", Checked.load_plugins),
    Check("arguments", Checked.read_arguments, ("plug-ins",)),
    Check("backend", Checked.find_backend, ("arguments",)),
    Check("limits", Checked.require_limits, ("arguments",)),
    Check("options", Checked.check_backend, ("backend",)),
    Check("script", Checked.check_script),
    Check("signals", Checked.check_signals, ("arguments",)),
    Check("directories", Checked.check_directories),
    Check("flags", Checked.read_flags_of_workers, ("options", "signals", "directories")),
    Check("other plug-ins", _plugins, ("plug-ins",)),
    Check("devices", _devices, ("arguments",)),
    Check("address", _address, ("arguments",)),
    Check("endpoint", _endpoint, ("options",)),
    Check("worker ports", _worker_ports, ("options",)),
    Check("health", _health, ("options",)),
)
"""The first check that fails decides how the launch ends."""


def check(args: RunOptions) -> int:
    """Make all checks and print what they find.

    Returns 0 if the job could start, otherwise the exit code with which its launch would end.
    """
    codes: dict[str, int] = {}
    out: set[str] = set()
    with contextlib.ExitStack() as held:
        start = Checked(args, held)
        for each in CHECKS:
            if broken := [name for name in each.after if name in out]:
                _say("skipped", each.name, f"it depends on: {', '.join(broken)}")
                out.add(each.name)
            elif code := _made(each, start):
                codes[each.name] = code
                out.add(each.name)
    if not codes:
        _print("The job could start here.")
        return 0
    code = next(iter(codes.values()))
    _print(f"The job would not start here: it would end with exit code {code} ({', '.join(codes)}).")
    return code


def _made(each: Check, start: Checked) -> int:
    """Make a check; returns the exit code with which the launch would end, 0 if it goes on."""
    error: BaseException | None = None
    found = ""
    with warnings_collected() as warned:
        try:
            found = each.find(start)
        except Exception as raised:
            error = of_the_system(raised)
    if warned:
        _say("warning", each.name, "; ".join(warned))
    if error is None:
        if not warned:
            _say("ok", each.name, found)
        return 0
    if isinstance(error, NotKnown):
        _say("skipped", each.name, str(error))
        return 0
    if start.args.verbose:
        traceback.print_exception(error)
    if not isinstance(error, RdzvError):
        _say("FAILED", each.name, f"internal error: {type(error).__name__}: {error}")
        return RdzvError.exit_code
    text = str(error)
    _say("FAILED", each.name, f"{text}{'' if text.endswith(('.', '?', '!')) else '.'} {error.remedy}".rstrip())
    return error.exit_code


def _say(verdict: str, name: str, text: str) -> None:
    _print(f"{verdict:<8} {name}: {printable(text, _LONGEST)}")


def _print(line: str) -> None:
    """Print a line. The reader may have seen enough and be gone: the exit code must not depend on that."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
