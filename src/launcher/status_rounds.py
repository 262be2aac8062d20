"""What the runs at an endpoint are doing, read from their keys: the newest round, its nodes, its workers' store.

The workers' store is another server on another port in every round (decision 0014): the keys say where.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher.status_figures import many
from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.endpoints import Endpoint, is_loopback_address, parse_endpoint
from rdzv_plugins.errors import RdzvError

_TTL_S = 10.0
_AT_A_TIME = 16
NODES_SHOWN = 16
"""Nodes that are named one by one."""


def add_rounds(endpoint: Endpoint, runs: Iterable[dict[str, Any]], timeout: float) -> None:
    """Put what is known of its round into each of the ``runs`` of a server's statistics, as ``round``.

    ``timeout`` (seconds) holds for each step. What cannot be asked is said there, under ``problem``; raises nothing.
    """

    def add(run: dict[str, Any]) -> None:
        try:
            run["round"] = _read(endpoint, str(run["name"]), timeout)
        except (RdzvError, TimeoutError, ValueError) as error:
            run["round"] = {"problem": str(error)}

    with ThreadPoolExecutor(_AT_A_TIME) as pool:  # one that does not answer is not to hold up the others
        list(pool.map(add, runs))


def round_text(found: Mapping[str, Any], show: Callable[[Endpoint, Mapping[str, Any]], str]) -> list[str]:
    """What ``add_rounds`` has found, for people; ``show`` makes the text of the workers' store's statistics."""
    if found.get("problem"):
        return [f"  its round is not known: {found['problem']}"]
    if found["number"] == 0:
        return [f"  no round yet: {found['progress'] or 'no node has joined'}"]
    nodes = found["nodes"]
    workers = sum(node["workers"] for node in nodes)
    reason = found["reason"] or f"{many(len(nodes), 'node')}, {many(workers, 'worker')}"
    lines = [f"  round {found['number']} is {found['state']}: {reason}"]
    if found["state"] == "over" and found["progress"]:
        lines.append(f"  {found['progress']}")
    if found["state"] == "complete":
        lines.append(
            "  nodes: "
            + _some(f"{node['rank']} on {node['host']} ({many(node['workers'], 'worker')})" for node in nodes)
        )
    gone = [f"{node['rank']} on {node['host']} (pid {node['pid']})" for node in nodes if not node["there"]]
    if gone:
        lines.append("  no longer there: " + _some(gone))
    store = found["store"]
    if store is not None and store["problem"]:
        lines.append(f"  the workers' store at {store['endpoint']} cannot be asked: {store['problem']}")
    elif store is not None:
        try:
            text = show(parse_endpoint(store["endpoint"], None), store["statistics"])
        except (KeyError, AttributeError, TypeError, ValueError) as error:  # of another version
            text = f"it answers with something else than statistics: {error!r}"
        lines += ["  the workers' store:", textwrap.indent(text, "    ")]
    return lines


def _some(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - NODES_SHOWN} more" if len(found) > NODES_SHOWN else ""
    return ", ".join(found[:NODES_SHOWN]) + more


def _read(endpoint: Endpoint, run: str, timeout: float) -> dict[str, Any]:
    """Raises ``RdzvError``, ``TimeoutError`` or ``ValueError``."""
    from rdzv_plugins.elastic import keys
    from rdzv_plugins.kvstore.sessions import NativeCoordination

    service = NativeCoordination(endpoint, run, name="status", who="the store")
    try:
        session = service.open_session(_TTL_S, on_lost=lambda _: None, timeout=timeout)
        own = session.local_addr == session.remote_addr
        held = {
            prefix: session.list(prefix, timeout=timeout)[0]
            for prefix in (keys.ALL, keys.NODES, keys.MEMBERS, keys.JOB)
        }
    finally:
        service.close()
    return _found(held, own, timeout)


def _found(held: Mapping[str, Sequence[KeyValue]], own: bool, timeout: float) -> dict[str, Any]:
    """From the keys of a run; ``own``: the endpoint is on this machine."""
    from rdzv_plugins.elastic import keys

    values = {kv.key: kv.value for kv in held[keys.ALL]}
    declared = keys.decode(keys.Round, values[keys.ROUND]) if keys.ROUND in values else keys.Round()
    there = {kv.key.removeprefix(keys.MEMBERS) for kv in held[keys.MEMBERS]}
    places = [keys.decode(keys.Assignment, kv.value) for kv in held[keys.NODES]]
    places = sorted((place for place in places if place.round == declared.number), key=lambda place: place.rank)
    nodes = [
        {
            "rank": place.rank,
            "host": place.host,
            "address": place.address,
            "pid": place.pid,
            "workers": place.nproc,
            "there": place.node_id in there,
        }
        for place in places
    ]
    store = next((Endpoint(place.master_addr, place.master_port) for place in places if place.master_addr), None)
    kind = _kind_of_store(held[keys.JOB])
    return {
        "number": declared.number,
        "state": declared.state,
        "reason": declared.reason,
        "progress": values.get(keys.PROGRESS, b"").decode(errors="backslashreplace"),
        "members": len(there),
        "nodes": nodes,
        "store": _store(store, kind, own, timeout) if store is not None and declared.state == "complete" else None,
        "problem": "",
    }


def _kind_of_store(job: Sequence[KeyValue]) -> str:
    """The setting ``store`` of the job; empty if it cannot be told."""
    try:
        return str(next(json.loads(kv.value)["settings"]["store"] for kv in job))
    except (StopIteration, ValueError, TypeError, KeyError):
        return ""


def _store(endpoint: Endpoint, kind: str, own: bool, timeout: float) -> dict[str, Any]:
    from rdzv_plugins.kvstore.framing import ask_statistics

    found: dict[str, Any] = {"endpoint": str(endpoint), "statistics": None, "problem": ""}
    if kind == "torch":
        found["problem"] = "it is torch's own (store=torch), which has no statistics"
    elif is_loopback_address(endpoint.host) and not own:
        found["problem"] = "that is an address of the job's machine alone: ask there"
    else:
        try:
            found["statistics"] = ask_statistics(endpoint, timeout)
        except RdzvError as error:
            found["problem"] = str(error)
    return found
