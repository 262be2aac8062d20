"""A run of the elastic rendezvous seen from outside: its newest round, from the keys that its nodes share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rdzv_plugins.coordination import CoordinationBackend, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.run_status import NodeStatus, RunStatus

_TTL_S = 10.0
_READ = (keys.ALL, keys.NODES, keys.MEMBERS, keys.JOB)


def observe(service: CoordinationBackend, timeout: float) -> RunStatus:
    """What the run does, for a service that its first node serves. Writes no key; closes ``service``.

    ``timeout`` (seconds) holds for each step. Raises ``RdzvError``, ``TimeoutError`` or ``ValueError``.
    """
    try:
        session = service.open_session(_TTL_S, on_lost=lambda _: None, timeout=timeout)
        near = session.local_addr == session.remote_addr
        held = {prefix: session.list(prefix, timeout=timeout)[0] for prefix in _READ}
    finally:
        service.close()
    return _found(held, near)


def _found(held: Mapping[str, Sequence[KeyValue]], near: bool) -> RunStatus:
    values = {kv.key: kv.value for kv in held[keys.ALL]}
    declared = keys.decode(keys.Round, values[keys.ROUND]) if keys.ROUND in values else keys.Round()
    there = {kv.key.removeprefix(keys.MEMBERS) for kv in held[keys.MEMBERS]}
    members = {member.node_id: member for member in keys.readable(keys.Member, held[keys.MEMBERS])}
    leader = keys.decode(keys.Leading, values[keys.LEADER]).node_id if keys.LEADER in values else ""
    told = keys.readable(keys.Assignment, held[keys.NODES])
    places = sorted(
        (place for place in told if place.is_place and place.round == declared.number), key=lambda place: place.rank
    )
    store = next((Endpoint(place.master_addr, place.master_port) for place in places if place.master_addr), None)
    return RunStatus(
        number=declared.number,
        state=declared.state,
        reason=declared.reason,
        progress=values.get(keys.PROGRESS, b"").decode(errors="backslashreplace"),
        members=len(there),
        leader=members[leader].name if leader in members else leader,
        nodes=tuple(
            NodeStatus(place.rank, place.host, place.pid, place.nproc, place.address, place.node_id in there)
            for place in places
        ),
        store=str(store) if store is not None and declared.state == "complete" else "",
        store_is_here=near,
        store_kind=_kind_of_store(held[keys.JOB]),
    )


def _kind_of_store(job: Sequence[KeyValue]) -> str:
    """The setting ``store`` of the job; empty if it cannot be told."""
    try:
        return str(next(json.loads(kv.value)["settings"]["store"] for kv in job))
    except (StopIteration, ValueError, TypeError, KeyError):
        return ""
