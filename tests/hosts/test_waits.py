"""Who waits in the store of a round that is over is told so, also where the machine that serves it went silently.

Each node in turn holds the others up at a place where agents wait for it, and then its link goes down.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.hosts.fleet import TTL, Fleet, outputs
from kits.hosts.hosts import Host
from kits.launcher.harness import Agent, plug_in

pytestmark = pytest.mark.thorough  # order: simulation

SOON = TTL + 30
"""Seconds: the time to live and a margin for busy processors; less than the limit of a read from the store."""
HOOKS = """
import collections, os, time
from rdzv_plugins import hookimpl
from rdzv_plugins.elastic import node_proxy

came = collections.Counter()

def hold(place):
    came[place] += 1
    print(f"at {place} {came[place]}", flush=True)
    if os.environ.get("HOLDS") == f"{place} {came[place]}":
        print(f"holds {place}", flush=True)
        time.sleep(600)

class SlowProxy(node_proxy.StoreProxy):
    def __init__(self, *arguments, **options):
        hold("trunk")
        super().__init__(*arguments, **options)

node_proxy.StoreProxy = SlowProxy

@hookimpl
def rdzv_after_join(info):
    hold("ranks")
"""
TOLD = {
    "ranks": "the round was over while ranks were exchanged",
    "trunk": "round {round} was over before this node's proxy was connected",
    "barrier": "the round was over in the exit barrier",
}


def expect_told(agent: Agent, how: str, round_: int, lost: str) -> None:
    """It goes on where it waited, and says why: the store may have closed before it was told the reason."""
    place, times = how.split()
    agent.wait_for(rf"round {round_} is over: {lost} .*was lost", SOON)
    agent.wait_for("(?s)" + ".*".join([TOLD[place].format(round=round_)] * int(times)), SOON)


@pytest.fixture
def hooks(tmp_path: Path) -> str:
    return plug_in(tmp_path, "rdzv_test_holds", HOOKS)


@pytest.mark.parametrize(
    ("conf", "holds"),
    [
        # rank 0 waits for the last one, then all for rank 0
        ("store=parallel", {"delta": "ranks 1", "alpha": "ranks 2"}),
        # the others wait for where its proxy takes connections
        ("store=tiered,fanout=1", {"alpha": "trunk 1", "beta": "ranks 1"}),
    ],
    ids=["parallel", "tiered"],
)
def test_waits_end_when_the_round_is_over(fleet: Fleet, hooks: str, conf: str, holds: dict[str, str]) -> None:
    hub, *hosts = fleet.lan.add("hub", "alpha", "beta", "gamma", "delta")
    endpoint, nnodes = fleet.serve(hub), f"1:{len(hosts)}"
    stops = {host.name: fleet.cluster.directory / f"stop-{host.name}" for host in hosts}

    def node(rank: int, host: Host) -> Agent:
        return fleet.node(
            host,
            endpoint,
            nnodes,
            rank=rank,
            ttl=TTL,
            conf=f"last_call_timeout=60,{conf}",
            stop=stops[host.name],
            PYTHONPATH=hooks,
            HOLDS=holds.get(host.name, ""),
        )

    agents = {host.name: node(rank, host) for rank, host in enumerate(hosts)}
    there = {host.name: host for host in hosts}
    for round_, (lost, how) in enumerate(holds.items(), 1):
        agents[lost].wait_for(f"holds {how.split()[0]}")
        for name in there if how.startswith("ranks") else ():  # it is to wait there when the round ends
            agents[name].wait_for(f"at {how}")
        fleet.lan.cut(there.pop(lost))
        for name in there:
            expect_told(agents[name], how, round_, lost)
    sizes = [agents[name].wait_for(r'"WORLD_SIZE": "(\d)"').group(1) for name in there]
    assert sizes == ["2", "2"], outputs(list(agents.values()))

    (server, second), round_ = there, len(holds) + 1
    (worker,) = fleet.cluster.workers(agents[second], "says.py")
    stops[second].touch()
    eventually(lambda: worker not in fleet.cluster.processes(), lambda: "its worker goes on")
    agents[second].wait_for("this node is done; waiting for node rank")
    fleet.lan.cut(there[server])
    expect_told(agents[second], "barrier 1", round_, server)
    assert agents[second].wait(SOON) == 0, outputs(list(agents.values()))
    assert len(re.findall('"WORLD_SIZE": "1"', agents[second].text)) == 1, "its worker ran again, alone"
