"""The proxies below a store, as text: who is there with how many clients, what they save, who waits for what.

The clients of a proxy are the workers of a node, and its agent. A proxy's report is what it last said about itself,
through the proxies above it. It may be missing (the proxy has just come), old (it is cut off) or from another version:
nothing in it is relied upon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rdzv_launcher.tools.status.figures import counts, duration, many, saved, size

SHOWN = 64
"""How many proxies below one parent are shown; if there are more, those in trouble come first."""

_WAITS_SHOWN = 3
_WAITS_REPORTED = 10
"""The most waits that a proxy reports: those that have lasted longest."""


class _Node(NamedTuple):
    """A proxy: ``above`` is what its parent says about it, ``report`` what it says itself."""

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
    cached, state = _mapping(own, "cached"), "connected" if own.get("attached") else "cut off from it"
    return [
        f"proxy of the store at {own.get('root')}: {state}, {int(_number(own, 'reconnects'))} reconnection(s), "
        f"{size(_number(own, 'unacknowledged'))} sent and not confirmed",
        "sent up: " + counts(_mapping(own, "upstream")),
        "saved: " + counts(_mapping(own, "saved")),
        f"cached: {int(_number(cached, 'keys'))} keys, {size(_number(cached, 'bytes'))}; "
        f"{int(_number(own, 'ahead'))} keys followed ahead of their readers",
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
                f"{indent}  waits for {wait.get('key')}: {int(_number(wait, 'waiters'))} client(s) "
                f"since {duration(_number(wait, 'oldest_s'))}"
            )
        if len(waits) > _WAITS_SHOWN:
            yield f"{indent}  and for {len(waits) - _WAITS_SHOWN} more keys"
        yield from _lines(node.children, indent + "  ")
    if len(nodes) > len(shown):
        yield f"{indent}and {len(nodes) - len(shown)} more (--json has them all)"


def _line(node: _Node) -> str:
    who = f"{node.name} at {node.address}" if node.address else node.name
    if not node.report:
        return f"{who}: {'has not reported yet' if node.attached else 'cut off before it has reported'}"
    asked, sent = int(_number(node.report, "requests")), int(_number(node.report, "upstream"))
    line = (
        f"{who}: {many(int(_number(node.report, 'workers')), 'client')}, {asked} operations, {sent} sent up"
        + (", with those from below" if node.children else f" ({saved(asked, sent)})")
        + f", {int(_number(node.report, 'hits'))} from its cache"
    )
    return line if node.attached else f"{line}; CUT OFF, as of its last report"


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
