"""A static job seen from outside, without torch: whose endpoint it is, and what its newest round is doing."""

from __future__ import annotations

import json

from rdzv_plugins.backends.static.arrivals import Arrival, Go, parse_go, parse_over
from rdzv_plugins.backends.static.keys import NAME, run_prefix
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.interfaces import NodeStatus, Request, RunStatus
from rdzv_plugins.kvstore.tcpstore.listener import Hello, StoreReader, reading, require_run, served_by
from rdzv_plugins.rounds.ends import parse_outcome

_MOST_NODES = 10_000
"""The most nodes that are asked for one by one."""


def recognise(request: Request, timeout: float) -> str:
    """See ``Backend.recognise``."""
    return served_by(NAME, parse_endpoint(request.endpoint, None), timeout)


def status(request: Request, timeout: float) -> RunStatus:
    """See ``Backend.status``. Without a run id, it is that of the run whose node rank 0 serves there, the only one."""
    endpoint: Endpoint = request.target
    with reading(endpoint, timeout) as reader:
        hello = reader.hello(NAME)
        if hello is None:
            raise EndpointUnreachable(
                f"{endpoint} is a TCPStore, but not that of a {NAME!r} node rank 0", remedy="Check address and port."
            )
        require_run(request, endpoint, hello)
        return _read(reader, hello)


def _read(reader: StoreReader, hello: Hello) -> RunStatus:
    prefix, wanted = run_prefix(hello.run_id), int(hello.nnodes)
    number = int(reader.held(f"{prefix}/round") or b"0")
    arrived = {
        rank: Arrival(**json.loads(text))
        for rank in range(min(wanted, _MOST_NODES))
        if (text := reader.held(f"{prefix}/node/{number}/{rank}"))
    }
    go = _go(reader.held(f"{prefix}/go/{number}"))
    ended = reader.held(f"{prefix}/end")
    nodes = tuple(
        NodeStatus(rank, who.host, who.pid, there=reader.held(f"{prefix}/left/{who.incarnation}") is None)
        for rank, who in arrived.items()
    )
    outcome = parse_outcome(ended) if ended else go.ended if go else None
    if outcome is not None:
        members = sum(node.there for node in nodes)
        failed = outcome.end == "failed"
        return RunStatus(number, "failed" if failed else "ended", outcome.reason, members=members, nodes=nodes)
    missing = [str(rank) for rank in range(wanted) if rank not in arrived]
    if number == 0 or go is None:
        there = f"{len(arrived)} of {wanted} nodes are there"
        progress = f"{there}; missing: node rank {', '.join(missing)}" if missing else there
        return RunStatus(number, "waiting" if number else "none", "", progress, members=len(arrived), nodes=nodes)
    over = reader.held(f"{prefix}/over/{number}")
    if over is not None:
        return RunStatus(number, "over", str(parse_over(over)), members=len(arrived), nodes=nodes)
    store = str(Endpoint(go.master_addr, go.master_port))
    return RunStatus(number, "complete", members=len(arrived), nodes=nodes, store=store, store_is_here=reader.is_here)


def _go(text: bytes | None) -> Go | None:
    return None if text is None else parse_go(text)
