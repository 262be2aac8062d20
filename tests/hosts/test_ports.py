"""The firewall table of docs/guides/operations.md: on each host of a job listens what it says, and nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from kits.eventually import eventually
from kits.hosts.fleet import Fleet
from kits.hosts.hosts import Host

from rdzv_plugins.testing.launched import outputs

PAGE = Path(__file__).parents[2] / "docs/guides/operations.md"
FIRST, LAST = 29601, 29610
ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


class Row(NamedTuple):
    """What the page says of a backend."""

    port: int
    endpoint: str
    store: str
    proxies: str
    agents: str
    workers: str


TABLE = {found[0]: Row(int(found[1]), *map(str.strip, found[2:])) for found in ROW.findall(PAGE.read_text())}


def sockets(host: Host, flags: str) -> list[tuple[list[str], int]]:
    """What ``ss`` shows on this host: the columns from the queues on, and the process."""
    command = ["nsenter", f"--target={host.pid}", "--net", "ss", flags]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    owners = [re.search(r"pid=(\d+)", line) for line in shown.splitlines()]
    return [(line.split()[1:], int(pid[1]) if pid else 0) for line, pid in zip(shown.splitlines(), owners, strict=True)]


def listeners(host: Host) -> set[tuple[str, int, int]]:
    """All on this host: address, port, process."""
    ends = [(columns[2].rpartition(":"), pid) for columns, pid in sockets(host, "-Hltnp")]
    return {(address, int(port), pid) for (address, _, port), pid in ends}


@pytest.mark.parametrize(
    "backend", ["parallel", *(pytest.param(x, marks=pytest.mark.thorough) for x in sorted(TABLE) if x != "parallel")]
)
def test_what_listens_where(fleet: Fleet, backend: str) -> None:
    said = TABLE[backend]
    alpha, beta, gamma = fleet.lan.add("alpha", "beta", "gamma")
    elsewhere = []  # pids of what is no part of the job
    if backend == "etcd":
        elsewhere.append(fleet.serve_etcd(gamma).pid)
    endpoint = (gamma if backend == "etcd" else alpha).address
    conf = f"worker_ports={FIRST}-{LAST}" + (",fanout=1" if backend == "tiered" else "")
    command = ["rdzv-run", "--nnodes=2", f"--rdzv-backend={backend}", "--rdzv-id=job", f"--rdzv-conf={conf}"]
    where = [f"--master-addr={endpoint}"] if backend == "static" else [f"--rdzv-endpoint={endpoint}"]
    # where it can be, rank 0 is not on the host of the endpoint
    ranks = {"static": (0, 1), "c10d": (None, None)}.get(backend, (1, 0))
    stop = fleet.cluster.directory / "stop"
    agents = {}
    for host, rank in zip((alpha, beta), ranks, strict=True):
        given = [] if rank is None else [f"--node-rank={rank}"]
        agents[host] = fleet.start(host, [*command, *where, *given, fleet.cluster.script("trains.py"), stop])
    eventually(lambda: all(each.reports() for each in agents.values()), lambda: outputs([*agents.values()]))
    first = next(host for host, agent in agents.items() if agent.reports()[0]["RANK"] == "0")
    serving = set()
    for host, agent in agents.items():
        found = listeners(host)
        worker = agent.reports()[0]["PID"]
        assert {pid for _, _, pid in found} - {agent.pid} == {worker}, (host.name, found)
        assert said.workers == "every node"
        assert {address for address, _, pid in found if pid == worker} == {host.address}
        loopback = [port for address, port, _ in found if address == "127.0.0.1"]
        assert len(loopback) == (backend == "tiered")
        agents_ports = {port for _, port, pid in found if pid == agent.pid} - {*loopback}
        inside = {port for port in agents_ports if FIRST <= port <= LAST}
        assert len(inside) == (host is first) * (2 if backend == "tiered" else 1)
        dialled = {int(columns[3].rpartition(":")[2]) for columns, pid in sockets(host, "-Htnp") if pid == worker}
        assert bool(dialled & set(range(FIRST, LAST + 1))) == (backend != "tiered"), "with proxies the agents only"
        outside = {port for port in agents_ports - inside if port != said.port}
        assert len(outside) == {"none": 0, "every node": 1}[said.agents], "its own, by which others see it live"
        serving |= {(host.name, port) for port in agents_ports - inside - outside}
    at = {"static": "node rank 0", "etcd": "the members of etcd"}.get(backend, "the node that has its address")
    assert said.endpoint.startswith(at)
    assert serving == (set() if backend == "etcd" else {("alpha", said.port)})
    assert {pid for _, _, pid in listeners(gamma)} == set(elsewhere)
    assert said.store == "node of rank 0"
    assert ("K nodes" in said.proxies) == (backend == "tiered")
    fleet.stop()
    assert [agent.wait() for agent in agents.values()] == [0, 0], outputs([*agents.values()])
