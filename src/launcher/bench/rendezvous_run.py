"""One run of ``rdzv bench rendezvous``: what its nodes need, and the process that keeps them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.bench.rendezvous_fork import ended_by
from launcher.bench.rendezvous_nodes import as_data
from launcher.bench.rendezvous_parts import Part
from launcher.bench.rendezvous_targets import HAVE_SERVERS, LATER_S, Target
from launcher.bench.tiered_network import Machine, Network
from rdzv_plugins.errors import RdzvError

_LOOPBACK = Machine("127.0.0.1")
_ALONE = 4
"""Nodes that have a process of their own though the others share theirs: one may lead, one be rank 0, two may go."""
_IDLE_S = 6.0
"""In which each node of torch gives a sign of life: by default every five seconds."""
_HEARD_OF_S = 25.0
"""By torch's defaults a node is lost after three signs of life that have not come, five seconds apart."""
_OTHER_S = 400.0


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    nodes: tuple[int, ...]
    simulate: bool
    processes: int
    """With ``simulate``: that hold the nodes, beside those of nodes that may be lost."""
    delay_ms: float
    """Of a round trip between a node and the endpoint."""
    hosts: str
    """namespaces or loopback."""
    server: str
    """Of parallel and tiered: part of the first node's process (agent), or of another one (process)."""
    etcd_data: str
    references: str
    """torch's own to measure beside, or none."""
    ttl: float
    limit_s: float
    repeats: int
    quick: bool


@dataclass(frozen=True)
class What:
    """Beside the first round."""

    idle: bool
    loss: bool


def shape(nodes: int, settings: Settings) -> tuple[int, int]:
    """How many processes there are, and how many nodes the first one holds; no other has more."""
    if not settings.simulate:
        return nodes, 1
    alone = min(_ALONE, nodes - 1)
    each = math.ceil((nodes - alone) / min(settings.processes, nodes - alone))
    return math.ceil((nodes - alone) / each) + alone, each


def layout(nodes: int, settings: Settings) -> list[list[int]]:
    """The numbers of the nodes in each process."""
    _, each = shape(nodes, settings)
    together = nodes - min(_ALONE, nodes - 1) if settings.simulate else nodes
    groups = [[*range(start, min(start + each, together))] for start in range(0, together, each)]
    return groups + [[number] for number in range(together, nodes)]


def run(
    target: Target,
    nodes: int,
    settings: Settings,
    what: What,
    *,
    network: Network | None,
    prefix: list[str],
    files: Path,
) -> dict[str, Any]:
    """One run in fresh processes; returns ``rendezvous_keeper.Sample`` as data. Raises ``RdzvError``.

    ``network``: a machine for each process of nodes; ``prefix``: what goes before the command that keeps them;
    ``files``: a directory for what this run needs, which goes with it.
    """
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(dir=files)))
        groups = layout(nodes, settings)
        machines = network.nodes if network is not None else [_LOOPBACK] * len(groups)
        way = _way(target, settings, machines[0], network, directory, running)
        processes = [
            {"numbers": numbers, "endpoint": way.endpoint, "machine": asdict(machine)}
            for numbers, machine in zip(groups, machines, strict=False)
        ]
        tells = target.harness.kind == "coordination"
        task = {
            "target": target.name,
            "request": as_data(target.request(nodes, f"bench-{uuid.uuid4().hex[:8]}", way.first)),
            "ranks": target.ranks,
            "says_who_serves": target.says_who_serves,
            "first_serves": way.first_serves,
            "addresses": target.reference or target.harness.kind == "state",
            "timeout_s": settings.ttl + settings.limit_s + LATER_S,
            "processes": processes,
            "limit_s": settings.limit_s,
            "unheard_s": 2 * settings.ttl if tells else max(2 * settings.ttl, _HEARD_OF_S),
            "at_once_s": settings.ttl / 2,
            "idle_s": _IDLE_S if what.idle else 0,
            "loss": what.loss,
            "service": way.service,
        }
        return _kept(task, prefix if not target.given else [], dict(target.harness.environment), running)


@dataclass(frozen=True)
class _Way:
    """To the service."""

    first: str
    """The endpoint of node 0, which may serve it."""
    endpoint: str
    """That of all others."""
    first_serves: bool
    service: dict[str, Any]


def _way(
    target: Target, settings: Settings, home: Machine, network: Network | None, directory: Path, running: ExitStack
) -> _Way:
    empty = directory / "endpoint"
    empty.mkdir()
    written, host, port = target.endpoint(empty)
    machine, outside, first_serves = _LOOPBACK, False, False
    pids = _pids(target)
    apart = target.given or target.harness.service is not None
    if settings.server == "process" and target.name in HAVE_SERVERS and not target.given:
        machine = network.root if network is not None else _LOOPBACK
        server = running.enter_context(Part("server", machine))
        host, port, pids, apart = machine.address, server.port, [server.pid], True
        written = f"{host}:{port}"
    elif target.served_by_node:
        machine, first_serves = home, True
        if network is not None:
            host = home.address
            written = f"{host}:{port}"
    else:
        outside = True
    service = {
        "probe": target.probe,
        "endpoint": f"{host}:{port}",
        "machine": asdict(machine),
        "pids": pids,
        "apart": apart,
    }
    delay_s = settings.delay_ms / 1000
    if not target.harness.dialled or not (delay_s or (outside and network is not None)):
        return _Way(written, written, first_serves, service)
    # a service that runs outside is dialled from outside
    where = network.relay if network is not None else _LOOPBACK
    relay = Part("relay", where, host=host, port=port, delay_s=delay_s / 2, there=not outside)
    running.enter_context(relay)
    through = f"{where.address}:{relay.port}"
    return _Way(written if first_serves else through, through, first_serves, service)


def _pids(target: Target) -> list[int]:
    try:
        return [*target.harness.service.pids] if target.harness.service is not None else []
    except Exception as error:  # a stranger's harness may raise anything
        raise RdzvError(f"its harness does not tell its processes: {type(error).__name__}: {error}") from error


def _kept(task: dict[str, Any], prefix: list[str], environment: dict[str, str], running: ExitStack) -> dict[str, Any]:
    command = [*prefix, sys.executable, "-m", "launcher.bench.rendezvous_keeper", json.dumps(task)]
    pipe = subprocess.PIPE
    # thousands of nodes may warn: no pipe holds that
    words = running.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 (closed with the run)
    keeper = running.enter_context(
        subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=words,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends it
        )
    )
    running.callback(keeper.kill)
    # its standard input stays open until it has ended: that is how it knows that this process lives
    limit_s = _OTHER_S + 3 * task["limit_s"] + 2 * task["unheard_s"] + task["idle_s"]
    try:
        keeper.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise RdzvError(f"the process that keeps its nodes has not ended after {limit_s:g} s") from None
    said, _ = keeper.communicate()
    if keeper.returncode:
        words.seek(0)
        last = words.read().strip().splitlines()[-12:]
        raise RdzvError("\n  | ".join([f"the process that keeps its nodes: {ended_by(keeper.returncode)}", *last]))
    sample: dict[str, Any] = json.loads(said)
    return sample
