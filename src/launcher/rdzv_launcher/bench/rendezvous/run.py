"""One run of ``rdzv bench rendezvous``: what its nodes need, and the process that keeps them."""

from __future__ import annotations

import json
import math
import os
import tempfile
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rdzv_launcher.bench.processes.child import Child, module_command
from rdzv_launcher.bench.processes.hosts import Machine, Network
from rdzv_launcher.bench.processes.parts import Part
from rdzv_launcher.bench.rendezvous.nodes import as_data
from rdzv_launcher.bench.rendezvous.settings import NATIVE, RendezvousSettings
from rdzv_launcher.bench.rendezvous.targets import LATER_S, RendezvousTarget
from rdzv_plugins.errors import RdzvError

_LOOPBACK = Machine("127.0.0.1")
_IMPORTS = {"coordination": ["rdzv_plugins.elastic.handler"], "state": ["rdzv_plugins.dynamic.handler"]}
"""What the nodes need, by what their backend is: torch is imported for torch's dynamic rendezvous alone."""
_ALONE = 4
"""Nodes that have their own process even if the others share theirs: one may lead, one be rank 0, two may go."""
_ALONE_OF_NATIVE = 2
"""The first leads and is rank 0, and the last may go."""
_IDLE_S = 6.0
"""In this time each torch node gives a sign of life: by default every five seconds."""
_HEARD_OF_S = 25.0
"""By torch's defaults a node is lost after three missing signs of life, five seconds apart."""
_OTHER_S = 400.0


@dataclass(frozen=True)
class AlsoMeasured:
    """What a run does besides the first round."""

    idle: bool
    loss: bool


def shape(nodes: int, settings: RendezvousSettings) -> tuple[int, int]:
    """How many processes there are, and how many nodes the fullest of them holds."""
    if not settings.simulate:
        return nodes, 1
    groups = layout(nodes, settings)
    return len(groups), max(map(len, groups))


def layout(nodes: int, settings: RendezvousSettings) -> list[range]:
    """The numbers of the nodes in each process. The first holds node 0, and as many others as any."""
    if not settings.simulate:
        return [range(number, number + 1) for number in range(nodes)]
    native = settings.simulate == NATIVE
    alone = min(_ALONE_OF_NATIVE if native else _ALONE, nodes - 1)
    begin, end = (1, nodes - 1) if native else (0, nodes - alone)
    each = math.ceil((end - begin) / min(settings.processes, end - begin))
    groups = [range(start, min(start + each, end)) for start in range(begin, end, each)]
    return (
        [range(number, number + 1) for number in range(begin)]
        + groups
        + [range(number, number + 1) for number in range(end, nodes)]
    )


def run_once(
    target: RendezvousTarget,
    nodes: int,
    settings: RendezvousSettings,
    what: AlsoMeasured,
    *,
    network: Network | None,
    prefix: list[str],
    files: Path,
) -> dict[str, Any]:
    """One run in fresh processes; returns a ``RendezvousSample`` as data. Raises ``RdzvError``.

    ``network``: a machine for each process of nodes; ``prefix``: what goes before the command that keeps them;
    ``files``: a directory for what this run needs, deleted with it.
    """
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(dir=files)))
        groups = layout(nodes, settings)
        machines = network.nodes if network is not None else [_LOOPBACK] * len(groups)
        way = _way(target, settings, machines[0], network, directory, running)
        processes = [
            {"numbers": [*numbers], "endpoint": way.endpoint, "machine": asdict(machine)}
            for numbers, machine in zip(groups, machines, strict=False)
        ]
        tells = target.harness.kind == "coordination"
        task = {
            "target": target.name,
            "imports": [*_IMPORTS.get(target.harness.kind, ()), *target.imports],
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
            "native": settings.simulate == NATIVE,
            "service": way.service,
        }
        return _kept(task, prefix if not target.given else [], dict(target.harness.environment), running)


@dataclass(frozen=True)
class _Way:
    """How the nodes reach the service."""

    first: str
    """The endpoint of node 0, which may serve it."""
    endpoint: str
    """The endpoint of all others."""
    first_serves: bool
    service: dict[str, Any]


def _way(
    target: RendezvousTarget,
    settings: RendezvousSettings,
    home: Machine,
    network: Network | None,
    directory: Path,
    running: ExitStack,
) -> _Way:
    empty = directory / "endpoint"
    empty.mkdir()
    written, host, port = target.endpoint(empty)
    machine, outside, first_serves = _LOOPBACK, False, False
    pids = _pids(target)
    apart = target.given or target.harness.service is not None
    if settings.server == "process" and target.native and not target.given:
        machine = network.root if network is not None else _LOOPBACK
        server = running.enter_context(Part("store", machine=asdict(machine)))
        server.start()
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
    task = {"host": host, "port": port, "delay_s": delay_s / 2, "there": not outside}
    relay = running.enter_context(Part("relay", machine=asdict(where), **task))
    relay.start()
    through = f"{where.address}:{relay.port}"
    return _Way(written if first_serves else through, through, first_serves, service)


def _pids(target: RendezvousTarget) -> list[int]:
    try:
        return [*target.harness.service.pids] if target.harness.service is not None else []
    except Exception as error:  # a third-party harness may raise anything
        raise RdzvError(f"its harness does not tell its processes: {type(error).__name__}: {error}") from error


def _kept(task: dict[str, Any], prefix: list[str], environment: dict[str, str], running: ExitStack) -> dict[str, Any]:
    command = [*prefix, *module_command("rendezvous.keeper", json.dumps(task))]
    variables = {**os.environ, **environment}
    keeper = Child("the process that keeps its nodes", command, environment=variables, end_limit_s=0)
    running.enter_context(keeper)
    sample: dict[str, Any] = json.loads(
        keeper.read(_OTHER_S + 3 * task["limit_s"] + 2 * task["unheard_s"] + task["idle_s"])
    )
    return sample
