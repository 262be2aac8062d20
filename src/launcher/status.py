"""``rdzv status``: what a native store does, and above all who waits for which key, since when.

Of a server where jobs meet it also shows the newest round of each, with the workers' store of that round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from launcher.status_figures import counts, duration, size
from launcher.status_rounds import add_rounds, round_text
from launcher.status_tree import names, only_ahead, proxy, tree
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
        help="of a job, of rdzv serve, or of a workers' store (its first node says it; MASTER_ADDR:MASTER_PORT)",
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
        add_rounds(endpoint, stats.get("runs", ()), args.timeout)
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
        f"up {duration(server['uptime_s'])}",
        f"connections: {connections['open']} open (peak {connections['peak']}, limit {connections['limit']}), "
        f"{connections['accepted']} accepted, {connections['closed']} closed",
        "requests: " + counts(stats["requests"]),
        f"bytes: {size(volume['received'])} received, {size(volume['sent'])} sent, {size(volume['stored'])} stored, "
        f"{size(volume['buffered'])} in half-sent requests and unread replies",
        "closed as offenders: " + counts(stats["refused"]),
        *proxy(stats),
    ]
    for keyspace in stats["keyspaces"]:
        lines.append(
            f"keyspace {keyspace['name']!r}, port {keyspace['port']}: {keyspace['keys']} keys, "
            f"{keyspace['queues']} queues, {size(keyspace['bytes'])}"
        )
        lines += [*tree(keyspace), *_waited(keyspace)]
    for run in stats.get("runs", ()):  # not in the first version
        lines.append(
            f"run {run['name']!r}: {run['sessions']} session(s), {run['keys']} keys, {run['watches']} watches, "
            f"revision {run['revision']}, {size(run['bytes'])}"
        )
        if "round" in run:
            lines += round_text(run["round"], as_text)
    return "\n".join(lines)


def _waited(keyspace: Mapping[str, Any]) -> list[str]:
    ahead = only_ahead(keyspace)
    waited = [each for each in keyspace["waited"] if each["key"] not in ahead]
    unlisted = keyspace["waited_keys"] - len(keyspace["waited"])
    proxies = names(keyspace)
    lines = ["  waiting, longest first:"] if waited or unlisted else ["  nobody waits"]
    for each in waited:
        clients = each["clients"]
        who = ", ".join(_client(client, proxies) for client in clients[:_CLIENTS_SHOWN])
        more = each["waiters"] - min(len(clients), _CLIENTS_SHOWN)
        lines.append(
            f"    for {each['key']}: {each['waiters']} client(s) since {duration(each['oldest_s'])}: "
            f"{who}{f' and {more} more' if more else ''}"
        )
    if unlisted:
        lines.append(f"    and for {unlisted} more keys")
    if ahead:
        lines.append(f"  proxies ask for {len(ahead)} key(s) ahead of their readers")
    return lines


def _client(client: Mapping[str, Any], proxies: Mapping[str, str]) -> str:
    address = str(client["address"])
    if address in proxies:
        return f"the proxy of {proxies[address]}"
    return f"{address} (pid {client['pid']})" if client["pid"] else address
