"""``rdzv status``: shows a job, and a native store: above all, who waits for whom, or for which key, and since when.

For a native store where jobs meet it shows the newest round of each, with that round's workers' store; elsewhere it
asks the job's backend.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

from rdzv_launcher.tools.job import Whose, add_job_flags, request_of, statistics_of
from rdzv_launcher.tools.serving import serving_place
from rdzv_launcher.tools.status.figures import counts, duration, size
from rdzv_launcher.tools.status.rounds import add_rounds, round_text
from rdzv_launcher.tools.status.run import run_data, run_text
from rdzv_launcher.tools.status.tree import proxy, tree
from rdzv_launcher.tools.status.waits import waited_lines
from rdzv_plugins.assemble.looking import can_look
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import EndpointUnreachable, UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Request
from rdzv_plugins.plain_text import printable_data


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser(
        "status", help="ask a job, or a native store, who is there and what they are waiting for"
    )
    add_job_flags(
        parser,
        endpoint_required=True,
        endpoint_help="the endpoint of a job (of several, the one that serves now is found), of rdzv serve, or "
        "of a workers' store (its first node prints it; MASTER_ADDR:MASTER_PORT)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="how long to wait for an answer (default 10)"
    )


def run(args: argparse.Namespace) -> int:
    """Ask and print; returns the exit code. Raises ``EndpointUnreachable``, and what a backend says about its run."""
    if not 0 < args.timeout < float("inf"):
        raise UsageError(f"--timeout={args.timeout:g} is not a time", remedy="Give a number of seconds above 0.")
    host = PluginHost.load()
    request = request_of(args)
    entry = host.catalog.find(args.rdzv_backend) if args.rdzv_backend else None
    if entry is not None and can_look(entry.backend):
        text = _of_run(entry, request, args)
    else:
        if "," in request.endpoint:
            request = dataclasses.replace(request, endpoint=str(serving_place(host, request, args.timeout)[0]))
        whose = Whose(host, request)
        try:
            text = _of_native_store(parse_endpoint(request.endpoint, None), args, whose)
        except EndpointUnreachable:
            if entry is not None or whose.found is None or not can_look(whose.found.entry.backend):
                raise
            print(f"{request.endpoint} is {whose.found.what}", file=sys.stderr, flush=True)
            text = _of_run(whose.found.entry, request, args)
    print(text, flush=True)
    return 0


def _of_run(entry: Entry, request: Request, args: argparse.Namespace) -> str:
    data = run_data(entry, request, args.timeout)
    return json.dumps(data, indent=2) if args.json else run_text(printable_data(data), as_text)


def _of_native_store(endpoint: Endpoint, args: argparse.Namespace, whose: Whose) -> str:
    from rdzv_plugins.kvstore.native.framing import not_statistics

    stats = statistics_of(endpoint, args.timeout, whose)
    try:
        add_rounds(endpoint, stats.get("runs", ()), args.timeout, whose.token, whose.tls)
        return json.dumps(stats, indent=2) if args.json else as_text(endpoint, printable_data(stats))
    except KeyError as error:
        raise not_statistics(endpoint, f"there is no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:  # types other than ours
        raise not_statistics(endpoint, str(error)) from None


def _most(volume: Mapping[str, Any]) -> str:
    limit = volume.get("stored_limit", 0)  # missing in the first version, and in a proxy
    return f" (a keyspace at most {size(limit)})" if limit else ""


def _pending(connections: Mapping[str, Any]) -> str:
    """The connections that have sent no valid request yet; they are only mentioned when they are many."""
    pending = connections.get("pending", 0)  # missing in the first version
    return f", {pending} of which have sent no valid request yet" if pending else ""


def as_text(endpoint: Endpoint, stats: Mapping[str, Any]) -> str:
    """A store's statistics as text for people."""
    server, connections, volume = stats["server"], stats["connections"], stats["bytes"]
    lines = [
        f"store at {endpoint}: rdzv-plugins {server['version']}, pid {server['pid']}, {server['threads']} thread(s), "
        f"up {duration(server['uptime_s'])}",
        f"connections: {connections['open']} open{_pending(connections)} (peak {connections['peak']}, "
        f"limit {connections['limit']}), {connections['accepted']} accepted, {connections['closed']} closed",
        "requests: " + counts(stats["requests"]),
        f"bytes: {size(volume['received'])} received, {size(volume['sent'])} sent, "
        f"{size(volume['stored'])} stored{_most(volume)}, "
        f"{size(volume['buffered'])} in half-sent requests and unread replies",
        "refused: " + counts(stats["refused"]),
        *proxy(stats),
    ]
    for keyspace in stats["keyspaces"]:
        lines.append(
            f"keyspace {keyspace['name']!r}, port {keyspace['port']}: {keyspace['keys']} keys, "
            f"{keyspace['queues']} queues, {size(keyspace['bytes'])}"
            + (", PAUSED: its process stood still, nobody is served" if keyspace.get("paused") else "")
        )
        lines += [*tree(keyspace), *waited_lines(keyspace)]
    for run in stats.get("runs", ()):  # missing in the first version
        lines.append(
            f"run {run['name']!r}: {run['sessions']} session(s), {run['keys']} keys, {run['watches']} watches, "
            f"revision {run['revision']}, {size(run['bytes'])}"
        )
        if "round" in run:
            lines += round_text(run["round"], as_text)
    if stats.get("runs_forgotten"):
        lines.append(f"runs that have ended since the start, and their keys with them: {stats['runs_forgotten']}")
    return "\n".join(lines)
