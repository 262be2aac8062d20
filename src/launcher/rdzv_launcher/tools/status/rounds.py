"""What the runs at an endpoint are doing, read from their keys: the newest round, its nodes, its workers' store.

The workers' store is another server on another port in every round (decision 0003): the keys say where.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from rdzv_launcher.tools.status.figures import many
from rdzv_plugins.certificates import NodeCertificates
from rdzv_plugins.elastic.leading.placement import in_words
from rdzv_plugins.endpoints import Endpoint, is_loopback_address, parse_endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import RunStatus
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.plain_text import some

_AT_A_TIME = 16
NODES_SHOWN = 16
"""How many nodes are named one by one."""


def add_rounds(
    endpoint: Endpoint,
    runs: Iterable[dict[str, Any]],
    timeout: float,
    token: JobToken | None = None,
    tls: NodeCertificates | None = None,
) -> None:
    """Add what is known about its round to each of the ``runs`` of a server's statistics, as ``round``.

    ``timeout`` (seconds) applies to each step. What cannot be asked is noted there, under ``problem``; raises nothing.
    """

    def add(run: dict[str, Any]) -> None:
        try:
            run["round"] = _read(endpoint, str(run["name"]), timeout, token, tls)
        except (RdzvError, TimeoutError, ValueError) as error:
            run["round"] = {"problem": str(error)}

    with ThreadPoolExecutor(_AT_A_TIME) as pool:  # one that does not answer must not hold up the others
        list(pool.map(add, runs))


def round_text(found: Mapping[str, Any], show: Callable[[Endpoint, Mapping[str, Any]], str]) -> list[str]:
    """Lines for people about what ``add_rounds`` has found; ``show`` formats the workers' store's statistics."""
    if found.get("problem"):
        return [f"  its round is not known: {found['problem']}"]
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
        lines.append(f"  no longer there: {some(gone, NODES_SHOWN)}")
    store = found["store"]
    if store is not None and store["problem"]:
        lines.append(f"  the workers' store at {store['endpoint']} cannot be asked: {store['problem']}")
    elif store is not None:
        try:
            text = show(parse_endpoint(store["endpoint"], None), store["statistics"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:  # from another version
            text = f"it answers with something else than statistics: {error!r}"
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


def _read(
    endpoint: Endpoint, run: str, timeout: float, token: JobToken | None, tls: NodeCertificates | None
) -> dict[str, Any]:
    """The round of a run at a native store. Raises ``RdzvError``, ``TimeoutError`` or ``ValueError``."""
    from rdzv_plugins.elastic.observing import observe
    from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

    service = NativeCoordination(endpoint, run, name="status", who="the store", token=token, tls=tls)
    return round_data(observe(service, timeout), timeout, token, tls)


def round_data(
    found: RunStatus, timeout: float, token: JobToken | None = None, tls: NodeCertificates | None = None
) -> dict[str, Any]:
    """A round in its JSON form, with what the workers' store says within ``timeout`` seconds for each step."""
    data = asdict(found)
    store, here, kind = (data.pop(name) for name in ("store", "store_is_here", "store_kind"))
    data["store"] = _store(parse_endpoint(store, None), kind, here, timeout, token, tls) if store else None
    return data | {"problem": ""}


def _store(
    endpoint: Endpoint, kind: str, own: bool, timeout: float, token: JobToken | None, tls: NodeCertificates | None
) -> dict[str, Any]:
    from rdzv_plugins.kvstore.native.framing import ask_statistics

    found: dict[str, Any] = {"endpoint": str(endpoint), "statistics": None, "problem": ""}
    if kind == "torch":
        found["problem"] = "it is torch's own (store=torch), which has no statistics"
    elif is_loopback_address(endpoint.host) and not own:
        found["problem"] = "that is an address of the job's machine alone: ask there"
    else:
        try:
            found["statistics"] = ask_statistics(endpoint, timeout, token=token, tls=tls)
        except RdzvError as error:
            found["problem"] = str(error)
    return found
