"""``rdzv status``: shows a job, and a native store: above all, who waits for whom, or for which key, and since when.

For a native store where jobs meet it shows the newest round of each, read from its keys, with that round's workers'
store: that is another server on another port in every round (decision 0003). Elsewhere it asks the job's backend.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NamedTuple

from rdzv_launcher.tools.job import StoreAt, add_job_flags, request_of, serving_store
from rdzv_plugins.elastic.coordinator.placement import in_words
from rdzv_plugins.endpoints import Endpoint, is_loopback_address, parse_endpoint
from rdzv_plugins.errors import EndpointUnreachable, RdzvError, UsageError
from rdzv_plugins.interfaces import Request, RunStatus
from rdzv_plugins.plain_text import many, printable_data, some
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.registry.create import can_look, look, with_options
from rdzv_plugins.security.certificates import certificates_of
from rdzv_plugins.security.job_token import token_of


def counts(named: Mapping[str, int]) -> str:
    """The counts that are not 0, each with its name, or ``none``."""
    return ", ".join(f"{name} {count}" for name, count in named.items() if count) or "none"


def duration(seconds: float) -> str:
    """A duration as text, in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(count: float) -> str:
    """A number of bytes as text, in the unit that fits."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def saved(asked: int, sent: int) -> str:
    """How much of ``asked`` did not have to be sent, as text."""
    return f"{(asked - sent) / asked:.0%} saved" if 0 <= sent < asked else "none saved"


SHOWN = 64
"""How many proxies below one parent are shown; if there are more, those in trouble come first."""

_WAITS_SHOWN = 3
_WAITS_REPORTED = 10
"""The most waits that a proxy reports: those that have lasted longest."""


class _Node(NamedTuple):
    """A proxy: ``report`` is what it says about itself, the rest what its parent says."""

    name: str
    address: str
    attached: bool
    report: Mapping[str, Any]

    @property
    def children(self) -> list[_Node]:
        return [_node(child) for child in _list(self.report, "children")]

    @property
    def reported(self) -> list[Mapping[str, Any]]:
        """Keys that are waited for at this proxy, longest first."""
        return sorted(_list(self.report, "waiting"), key=lambda each: -_number(each, "oldest_s"))

    @property
    def waiting(self) -> list[Mapping[str, Any]]:
        """Keys that are waited for here, without those that only proxies below follow, ahead of their readers."""
        children = self.children
        below = {wait.get("key") for child in children for wait in child.reported}
        known = all(child.report and len(child.reported) < _WAITS_REPORTED for child in children)
        return [
            wait
            for wait in self.reported
            if not known or wait.get("key") in below or _number(wait, "waiters") > len(children)
        ]


def tree(keyspace: Mapping[str, Any]) -> list[str]:
    """Lines about the proxies of a keyspace; none if it has none."""
    nodes = [_node(trunk) for trunk in _list(keyspace, "trunks")]
    if not nodes:
        return []
    everybody = list(_all(nodes))
    clients = sum(int(_number(node.report, "workers")) for node in everybody)
    asked = sum(int(_number(node.report, "requests")) for node in everybody)
    hits = sum(int(_number(node.report, "hits")) for node in everybody)
    sent = sum(int(_number(node.report, "upstream")) for node in nodes)
    below = f", {len(everybody) - len(nodes)} below them" if len(everybody) > len(nodes) else ""
    total = f"  {many(len(nodes), 'proxy', 'proxies')} here{below}: {many(clients, 'client')}, {asked} operations, "
    return [f"{total}{sent} came here ({saved(asked, sent)}), {hits} from caches", *_lines(nodes, "    ")]


def names(keyspace: Mapping[str, Any]) -> dict[str, str]:
    """The proxies of a keyspace, by the address at which the store sees them as clients."""
    return {node.address: node.name for node in (_node(trunk) for trunk in _list(keyspace, "trunks")) if node.address}


def only_ahead(keyspace: Mapping[str, Any]) -> set[str]:
    """Keys of the store that proxies wait for ahead of their readers: no worker waits for them, as far as is known."""
    nodes = list(_all([_node(trunk) for trunk in _list(keyspace, "trunks")]))
    if any(len(node.reported) >= _WAITS_REPORTED or not node.report for node in nodes):
        return set()  # there may be some that are not reported
    proxies = names(keyspace)
    wanted = {wait.get("key") for node in nodes for wait in node.waiting}
    ahead = set()
    for waited in _list(keyspace, "waited"):
        clients = _list(waited, "clients")
        listed = len(clients) >= _number(waited, "waiters")
        if listed and waited.get("key") not in wanted and all(each.get("address") in proxies for each in clients):
            ahead.add(str(waited.get("key")))
    return ahead


def proxy(stats: Mapping[str, Any]) -> list[str]:
    """Lines about what a proxy says about itself when asked directly; none if it is not a proxy."""
    own = stats.get("proxy")
    if not isinstance(own, Mapping):
        return []
    cached, state = _mapping(own, "cached"), "connected" if own.get("attached") else "disconnected"
    return [
        f"proxy of the store at {own.get('root')}: {state}, {many(int(_number(own, 'reconnects')), 'reconnection')}, "
        f"{size(_number(own, 'unacknowledged'))} sent but not confirmed",
        "sent up: " + counts(_mapping(own, "upstream")),
        "saved: " + counts(_mapping(own, "saved")),
        f"cached: {int(_number(cached, 'keys'))} keys, {size(_number(cached, 'bytes'))}; "
        f"{int(_number(own, 'ahead'))} keys fetched ahead of readers",
    ]


def _lines(nodes: Sequence[_Node], indent: str) -> Iterator[str]:
    shown = sorted(nodes, key=lambda node: _natural(node.name))
    if len(shown) > SHOWN:
        shown = sorted(shown, key=_trouble)[:SHOWN]
    for node in shown:
        yield indent + _line(node)
        waits = node.waiting
        for wait in waits[:_WAITS_SHOWN]:
            yield (
                f"{indent}  waits for {wait.get('key')}: {many(int(_number(wait, 'waiters')), 'client')} "
                f"for {duration(_number(wait, 'oldest_s'))}"
            )
        if len(waits) > _WAITS_SHOWN:
            yield f"{indent}  and {len(waits) - _WAITS_SHOWN} more keys"
        yield from _lines(node.children, indent + "  ")
    if len(nodes) > len(shown):
        yield f"{indent}and {len(nodes) - len(shown)} more (all of them: --json)"


def _line(node: _Node) -> str:
    who = f"{node.name} at {node.address}" if node.address else node.name
    if not node.report:
        return f"{who}: {'no report yet' if node.attached else 'disconnected before its first report'}"
    asked, sent = int(_number(node.report, "requests")), int(_number(node.report, "upstream"))
    line = (
        f"{who}: {many(int(_number(node.report, 'workers')), 'client')}, {asked} operations, {sent} sent up"
        + (", including those from below" if node.children else f" ({saved(asked, sent)})")
        + f", {int(_number(node.report, 'hits'))} from its cache"
    )
    return line if node.attached else f"{line}; DISCONNECTED (figures from its last report)"


def _node(data: Mapping[str, Any]) -> _Node:
    """A proxy, from its trunk or from the report of another proxy above it, which says nothing more about it."""
    report = _mapping(data, "report") if "report" in data else data
    name = str(data.get("name") or report.get("name") or "a proxy without a name")
    return _Node(name, str(data.get("address") or ""), bool(data.get("attached", True)), report)


def _all(nodes: Sequence[_Node]) -> Iterator[_Node]:
    for node in nodes:
        yield node
        yield from _all(node.children)


def _trouble(node: _Node) -> tuple[bool, float]:
    """A sort key that puts the worst first: those cut off, then those with the longest wait."""
    return node.attached, -max((_number(wait, "oldest_s") for wait in node.waiting), default=0)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key to sort by: ``node 2`` before ``node 10``."""
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key, 0)
    return value if isinstance(value, int | float) else 0


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = data.get(key)
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


_CLIENTS_SHOWN = 3


def waited_lines(keyspace: Mapping[str, Any]) -> list[str]:
    """The waits, longest first, or that there are none. Raises what reading statistics of another version raises."""
    ahead = only_ahead(keyspace)
    waited = [each for each in keyspace["waited"] if each["key"] not in ahead]
    unlisted = keyspace["waited_keys"] - len(keyspace["waited"])
    proxies = names(keyspace)
    lines = ["  waiting, longest first:"] if waited or unlisted else ["  no client waits"]
    for each in waited:
        clients = (_client(client, proxies) for client in each["clients"])
        who = some(clients, _CLIENTS_SHOWN, of=each["waiters"])
        since = f"{many(each['waiters'], 'client')} for {duration(each['oldest_s'])}"
        lines.append(f"    for {each['key']}: {since}: {who}")
    if unlisted:
        lines.append(f"    and {unlisted} more keys")
    if ahead:
        lines.append(f"  proxies fetch {many(len(ahead), 'key')} ahead of readers")
    return lines


def _client(client: Mapping[str, Any], proxies: Mapping[str, str]) -> str:
    address = str(client["address"])
    if address in proxies:
        return f"the proxy of {proxies[address]}"
    return f"{address} (pid {client['pid']})" if client["pid"] else address


_AT_A_TIME = 16
NODES_SHOWN = 16
"""How many nodes are named one by one."""


def add_rounds(store: StoreAt, runs: Iterable[dict[str, Any]], timeout: float) -> None:
    """Add what is known about its round to each of the ``runs`` of a store's statistics, as ``round``.

    ``timeout`` (seconds) applies to each step. What cannot be asked is noted there, under ``problem``; raises nothing.
    """

    from rdzv_plugins.elastic.observer import observe

    def add(run: dict[str, Any]) -> None:
        try:
            seen = observe(store.service(str(run["name"]), "status"), timeout)
            run["round"] = round_data(seen, timeout, store.request)
        except (RdzvError, TimeoutError, ValueError) as error:
            run["round"] = {"problem": str(error)}

    with ThreadPoolExecutor(_AT_A_TIME) as pool:  # one that does not answer must not hold up the others
        list(pool.map(add, runs))


def round_text(found: Mapping[str, Any]) -> list[str]:
    """Lines for people about what ``add_rounds`` has found."""
    if found.get("problem"):
        return [f"  round unknown: {found['problem']}"]
    nodes, state = found["nodes"], found["state"]
    lines = [f"  {state_text(found)}"]
    if state == "none":
        return lines
    if state == "over" and found["progress"]:
        lines.append(f"  {found['progress']}")
    if state in ("complete", "waiting") and nodes:
        several = len({node["domain"] for node in nodes}) > 1
        named = (f"{node['rank']} on {node['host']} ({_of(node, several)})" for node in nodes)
        lines.append(f"  nodes: {some(named, NODES_SHOWN)}")
    gone = [f"{node['rank']} on {node['host']} (pid {node['pid']})" for node in nodes if not node["there"]]
    if gone:
        lines.append(f"  gone: {some(gone, NODES_SHOWN)}")
    store = found["store"]
    if store is not None and store["problem"]:
        lines.append(f"  the workers' store at {store['endpoint']} gives no statistics: {store['problem']}")
    elif store is not None:
        try:
            text = as_text(parse_endpoint(store["endpoint"], None), store["statistics"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:  # from another version
            text = f"unexpected statistics: {error!r}"
        lines += ["  the workers' store:", textwrap.indent(text, "    ")]
    return lines


def state_text(found: Mapping[str, Any]) -> str:
    """What has become of the round, in a sentence."""
    state = found["state"]
    if state == "none":
        return f"no round yet: {found['progress'] or 'no node has joined'}"
    if state == "waiting":
        return f"round {found['number']} is not complete: {found['progress']}"
    return f"round {found['number']} is {state}: {found['reason'] or _sizes(found['nodes'])}"


def _sizes(nodes: Sequence[Mapping[str, Any]]) -> str:
    workers = [node["workers"] for node in nodes]
    sizes = many(len(nodes), "node")
    return sizes if None in workers else f"{sizes}, {many(sum(workers), 'worker')}"


def _of(node: Mapping[str, Any], with_domain: bool) -> str:
    who = f"pid {node['pid']}" if node["workers"] is None else many(node["workers"], "worker")
    return f"{who}, {in_words(node['domain'])}" if with_domain else who


def round_data(found: RunStatus, timeout: float, request: Request) -> dict[str, Any]:
    """A round in its JSON form, with what the workers' store says within ``timeout`` seconds for each step.

    ``request`` has the token and the certificates with which it is asked.
    """
    data = asdict(found)
    store, here, kind = (data.pop(name) for name in ("store", "store_is_here", "store_kind"))
    data["store"] = _store(parse_endpoint(store, None), kind, here, timeout, request) if store else None
    return data | {"problem": ""}


def _store(endpoint: Endpoint, kind: str, own: bool, timeout: float, request: Request) -> dict[str, Any]:
    from rdzv_plugins.kvstore.native.framing import ask_statistics

    found: dict[str, Any] = {"endpoint": str(endpoint), "statistics": None, "problem": ""}
    if kind == "torch":
        found["problem"] = "torch's own store (store=torch) has none"
    elif is_loopback_address(endpoint.host) and not own:
        found["problem"] = "that is a loopback address of the job's machine: ask there"
    else:
        try:
            token, tls = token_of(request), certificates_of(request)
            found["statistics"] = ask_statistics(endpoint, timeout, token=token, tls=tls)
        except RdzvError as error:
            found["problem"] = str(error)
    return found


def run_text(data: Mapping[str, Any]) -> str:
    """The run described for people."""
    found = data["round"]
    run = f"run {data['run']!r}" if data["run"] else "the run"
    members = "" if found["members"] is None else f": {many(found['members'], 'node')} there"
    leader = f", led by {found['leader']}" if found["leader"] else ""
    return "\n".join([f"{run} at {data['endpoint']} by {data['backend']}{members}{leader}", *round_text(found)])


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser(
        "status", help="show which nodes a job has and what they are waiting for; also for a native store"
    )
    add_job_flags(
        parser,
        endpoint_required=True,
        timeout=10.0,
        endpoint_help="endpoint of a job (of several, the one that serves now is found), of rdzv serve, or of a "
        "workers' store (MASTER_ADDR:MASTER_PORT; the job's first node prints it)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Ask and print; returns the exit code. Raises ``EndpointUnreachable``, and what a backend says about its run."""
    if not 0 < args.timeout < float("inf"):
        raise UsageError(f"--timeout={args.timeout:g} is not a time limit", remedy="Give a number of seconds above 0.")
    host = PluginHost.load()
    request = request_of(args)
    entry = host.catalog.find(args.rdzv_backend) if args.rdzv_backend else None
    if entry is not None and can_look(entry.backend):
        text = _of_run(entry, request, args)
    else:
        several = "," in request.endpoint
        store = serving_store(host, request, args.timeout)[0] if several else StoreAt(host, request)
        try:
            text = _of_native_store(store, args)
        except EndpointUnreachable:
            if entry is not None or store.found is None or not can_look(store.found.entry.backend):
                raise
            print(f"{store.request.endpoint} is {store.found.what}", file=sys.stderr, flush=True)
            text = _of_run(store.found.entry, store.request, args)
    print(text, flush=True)
    return 0


def _of_run(entry: Entry, request: Request, args: argparse.Namespace) -> str:
    found = look(entry, request, args.timeout)
    asked = with_options(entry, request)  # with another service, cacert, cert and key belong to that
    data = {
        "run": request.run_id if request.is_named else "",
        "backend": entry.backend.name,
        "endpoint": request.endpoint,
        "round": round_data(found, args.timeout, asked),
    }
    return json.dumps(data, indent=2) if args.json else run_text(printable_data(data))


def _of_native_store(store: StoreAt, args: argparse.Namespace) -> str:
    from rdzv_plugins.kvstore.native.framing import not_statistics

    stats = store.statistics(args.timeout)
    try:
        add_rounds(store, stats.get("runs", ()), args.timeout)
        return json.dumps(stats, indent=2) if args.json else as_text(store.endpoint, printable_data(stats))
    except KeyError as error:
        raise not_statistics(store.endpoint, f"there is no {error}") from None
    except (AttributeError, TypeError, ValueError) as error:  # types other than ours
        raise not_statistics(store.endpoint, str(error)) from None


def as_text(endpoint: Endpoint, stats: Mapping[str, Any]) -> str:
    """A store's statistics as text for people."""
    server, connections, volume = stats["server"], stats["connections"], stats["bytes"]
    limit, pending = volume.get("stored_limit", 0), connections.get("pending", 0)  # a proxy has none
    most = f" (at most {size(limit)} per keyspace)" if limit else ""
    silent = f", {pending} of them without a valid request yet" if pending else ""
    lines = [
        f"store at {endpoint}: rdzv-plugins {server['version']}, pid {server['pid']}, "
        f"{many(server['threads'], 'thread')}, up {duration(server['uptime_s'])}",
        f"connections: {connections['open']} open{silent} (peak {connections['peak']}, "
        f"limit {connections['limit']}), {connections['accepted']} accepted, {connections['closed']} closed",
        "requests: " + counts(stats["requests"]),
        f"bytes: {size(volume['received'])} received, {size(volume['sent'])} sent, "
        f"{size(volume['stored'])} stored{most}, "
        f"{size(volume['buffered'])} in half-sent requests and unread replies",
        "refused: " + counts(stats["refused"]),
        *proxy(stats),
    ]
    for keyspace in stats["keyspaces"]:
        lines.append(
            f"keyspace {keyspace['name']!r}, port {keyspace['port']}: {keyspace['keys']} keys, "
            f"{keyspace['queues']} queues, {size(keyspace['bytes'])}"
            + (", PAUSED: its process stood still, so no client is served" if keyspace.get("paused") else "")
        )
        lines += [*tree(keyspace), *waited_lines(keyspace)]
    for run in stats.get("runs", ()):  # missing in the first version
        lines.append(
            f"run {run['name']!r}: {many(run['sessions'], 'session')}, {run['keys']} keys, {run['watches']} watches, "
            f"revision {run['revision']}, {size(run['bytes'])}"
        )
        if "round" in run:
            lines += round_text(run["round"])
    if stats.get("runs_forgotten"):
        lines.append(f"ended runs, deleted with their keys: {stats['runs_forgotten']}")
    return "\n".join(lines)
