"""``rdzv status``: what a native store does, and above all who waits for which key, since when."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import UsageError

_CLIENTS_SHOWN = 3


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser("status", help="ask a native store who waits for which key, and what it has done")
    parser.add_argument(
        "--rdzv-endpoint",
        "--rdzv_endpoint",
        required=True,
        metavar="HOST:PORT",
        help="of rdzv serve, or of a job's workers' store (its first node says it; MASTER_ADDR:MASTER_PORT)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="for an answer (default 10)")


def run(args: argparse.Namespace) -> int:
    """Ask and print; returns the exit code. Raises ``EndpointUnreachable``."""
    from rdzv_plugins.kvstore.framing import ask_statistics, not_statistics

    if not 0 < args.timeout < float("inf"):
        raise UsageError(f"--timeout={args.timeout:g} is not a time", remedy="Give a number of seconds above 0.")
    endpoint = parse_endpoint(args.rdzv_endpoint, None)
    stats = ask_statistics(endpoint, args.timeout)
    try:
        text = json.dumps(stats, indent=2) if args.json else as_text(endpoint, stats)
    except KeyError as error:
        raise not_statistics(endpoint, f"there is no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:  # of other types than ours
        raise not_statistics(endpoint, str(error)) from None
    print(text, flush=True)
    return 0


def as_text(endpoint: Endpoint, stats: Mapping[str, Any]) -> str:
    """The statistics for people."""
    server, connections, volume = stats["server"], stats["connections"], stats["bytes"]
    lines = [
        f"store at {endpoint}: rdzv-plugins {server['version']}, pid {server['pid']}, {server['threads']} thread(s), "
        f"up {_duration(server['uptime_s'])}",
        f"connections: {connections['open']} open (peak {connections['peak']}, limit {connections['limit']}), "
        f"{connections['accepted']} accepted, {connections['closed']} closed",
        "requests: " + _counts(stats["requests"]),
        f"bytes: {_size(volume['received'])} received, {_size(volume['sent'])} sent, {_size(volume['stored'])} stored, "
        f"{_size(volume['buffered'])} in half-sent requests and unread replies",
        "closed as offenders: " + _counts(stats["refused"]),
    ]
    for keyspace in stats["keyspaces"]:
        lines.append(
            f"keyspace {keyspace['name']!r}, port {keyspace['port']}: {keyspace['keys']} keys, "
            f"{keyspace['queues']} queues, {_size(keyspace['bytes'])}"
        )
        lines += _waited(keyspace)
    for run in stats.get("runs", ()):  # not in the first version
        lines.append(
            f"run {run['name']!r}: {run['sessions']} session(s), {run['keys']} keys, {run['watches']} watches, "
            f"revision {run['revision']}, {_size(run['bytes'])}"
        )
    return "\n".join(lines)


def _waited(keyspace: Mapping[str, Any]) -> list[str]:
    if not keyspace["waited"]:
        return ["  nobody waits"]
    lines = ["  waiting, longest first:"]
    for waited in keyspace["waited"]:
        clients = waited["clients"]
        who = ", ".join(_client(client) for client in clients[:_CLIENTS_SHOWN])
        more = waited["waiters"] - min(len(clients), _CLIENTS_SHOWN)
        lines.append(
            f"    for {waited['key']}: {waited['waiters']} client(s) since {_duration(waited['oldest_s'])}: "
            f"{who}{f' and {more} more' if more else ''}"
        )
    unlisted = keyspace["waited_keys"] - len(keyspace["waited"])
    return [*lines, f"    and for {unlisted} more keys"] if unlisted else lines


def _client(client: Mapping[str, Any]) -> str:
    return f"{client['address']} (pid {client['pid']})" if client["pid"] else str(client["address"])


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
