"""``store=tiered`` with real agents, workers and stores: the workers' route, and how it is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, last_rank, observing, outputs, restarts, worlds
from kits.launcher.harness import Agent
from kits.launcher.tiered_kit import EtcdMeeting, TieredMeeting, reports, root_of, tiered, trunks, wait_clients
from kits.wire.wire_client import WAIT, Raw, keyed

from rdzv_plugins.testing.harness import free_port

tiered_only = pytest.mark.parametrize("backend", ["tiered"], indirect=True)


@pytest.fixture(params=["tiered", pytest.param("etcd", marks=pytest.mark.thorough)])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def meeting(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Meeting]:
    if backend == "etcd":
        made: Meeting = EtcdMeeting(tmp_path, request.getfixturevalue("one_etcd"))
    else:
        made = TieredMeeting(tmp_path)
    with closing(made):
        yield made


def in_one_round(*agents: Agent, after: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Wait until the workers of ``agents``, one each, are the whole of one round; their reports in order of rank."""
    old = {report["PID"] for report in after or ()}  # a port may be used again

    def together() -> list[dict[str, Any]] | None:
        last = [report for agent in agents for report in agent.reports()[-1:]]
        roots = {report["RDZV_ROOT_PORT"] for report in last}
        whole = sorted(int(report["RANK"]) for report in last) == list(range(len(agents)))
        sizes = {report["WORLD_SIZE"] for report in last}
        fresh = not old & {report["PID"] for report in last}
        return last if whole and len(roots) == 1 and fresh and sizes == {str(len(agents))} else None

    found = eventually(together, lambda: f"no round of all of these:\n{outputs(agents)}")
    return sorted(found, key=lambda report: int(report["RANK"]))


@pytest.mark.thorough
@pytest.mark.skipif(
    tuple(map(int, version("torch").split(".")[:2])) < (2, 14),
    reason="torch 2.13 makes every worker of a launcher a client, wherever the script meets",
)
@tiered_only
def test_script_may_meet_at_an_address_of_its_own(meeting: Meeting) -> None:
    job = tiered(meeting, 2, script="own_init_method.py", args=(free_port(),))
    job.finish(job.node(0), job.node(1))


def test_workers_train_over_gloo_by_their_nodes_proxy(meeting: Meeting) -> None:
    go_on = meeting.directory / "go-on"
    job = tiered(meeting, 2, script="report.py", args=("wait", go_on), nproc=2, conf="ttl=60,trunk_grace=60")
    nodes = [job.node(0), job.node(1)]
    for node in nodes:
        node.wait_for(r'("SUM": 6.0[^$]*){2}')
    root = root_of(nodes)
    proxies = [{report["MASTER_PORT"] for report in node.reports()} for node in nodes]
    assert [len(ports) for ports in proxies] == [1, 1]
    assert len({str(root.port), *proxies[0], *proxies[1]}) == 3, "one for each node, and none is the store"
    assert {report["MASTER_ADDR"] for node in nodes for report in node.reports()} == {"127.0.0.1"}

    def saving() -> list[dict[str, Any]] | None:
        seen = trunks(root, count=2, workers=4, proxies=2)
        told = [report for trunk in seen for report in reports(trunk)]
        saved = all(0 < report["upstream"] < report["requests"] for report in told)
        return seen if saved and all(trunk["attached"] for trunk in seen) else None

    seen = eventually(saving, lambda: f"nothing is saved: {trunks(root, 2, 4, 2)}")
    assert [trunk["name"].partition(" on ")[0] for trunk in seen] == ["node 0", "node 1"]
    wait_clients(root, 2)  # the proxies alone: neither workers nor agents

    go_on.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert meeting.processes() == {}


@pytest.mark.thorough
@tiered_only
def test_second_tier_goes_by_the_first(meeting: Meeting) -> None:
    job = tiered(meeting, 3, script="meets.py", conf="fanout=1,allow_same_host=true", args=(stop(meeting),))
    nodes = [job.node(rank) for rank in range(3)]
    met = in_one_round(*nodes)
    assert [report["MET"] for report in met] == [["rank 0", "rank 1", "rank 2"]] * 3
    assert len({report["MASTER_PORT"] for report in met}) == 3
    root = root_of(nodes)
    assert {report["RDZV_ROOT_PORT"] for report in met} == {str(root.port)}
    (trunk,) = trunks(root, count=1, workers=3, proxies=3)
    mine, *children = reports(trunk)
    assert mine["name"].startswith("node 0 on ")
    assert sorted(each["name"][:6] for each in children) == ["node 1", "node 2"]
    wait_clients(root, 1)
    finish(job, *nodes)


@pytest.mark.thorough
@tiered_only
def test_worker_that_was_held_back_from_an_old_round_reaches_no_store(meeting: Meeting) -> None:
    """It begins when the next round has: neither at its proxy nor at the root is anything left of its own."""
    hold = meeting.directory / "hold"
    job = tiered(meeting, 2, script="meets.py", args=(stop(meeting), hold), restarts=1)
    nodes = [job.node(0), job.node(1)]
    before = in_one_round(*nodes)
    os.kill(before[1]["PID"], signal.SIGKILL)
    after = in_one_round(*nodes, after=before)
    hold.touch()
    found = [hold.with_name(f"found-{rank}") for rank in range(2)]
    eventually(lambda: all(path.exists() for path in found), lambda: f"nothing was found:\n{outputs(nodes)}")
    assert [json.loads(path.read_text()) for path in found] == [[], []]
    assert [report["MET"] for report in after] == [["rank 0", "rank 1"]] * 2, "a fresh store"
    assert [report["TORCHELASTIC_RESTART_COUNT"] for report in after] == ["0", "1"], "who failed by itself"
    finish(job, *nodes)


@pytest.mark.thorough
@tiered_only
def test_agent_that_is_killed_takes_its_proxy_along_and_the_others_go_on(meeting: Meeting) -> None:
    lost = 0  # with whom the store goes
    meeting.serve()
    job = tiered(meeting, "1:2", script="meets.py", conf="last_call_timeout=80", args=(stop(meeting),))
    nodes = [job.node(0), job.node(1)]
    before = in_one_round(*nodes)
    victim, other = nodes[lost], nodes[1 - lost]
    with Raw(int(before[lost]["MASTER_PORT"])) as bystander:
        bystander.send(keyed(WAIT, [b"/never"]))
        meeting.kill(victim.pid)  # not its worker
        assert bystander.until_close() == b""
    victim.process.wait(30)
    in_one_round(other, after=before)
    assert worlds(other) == [2, 1]
    assert restarts(other) == {"0"}, "its worker has lost its peer's store or not: that is not its fault"
    eventually(lambda: before[lost]["PID"] not in meeting.processes(), lambda: "the worker without an agent stays")
    with pytest.raises(ConnectionRefusedError):
        Raw(int(before[lost]["MASTER_PORT"]))
    finish(job, other)


@pytest.mark.thorough
@tiered_only
def test_store_that_is_silent_is_lost_and_all_meet_again_without_a_restart_used(meeting: Meeting) -> None:
    """Rank 0's node stands still for longer than ``trunk_grace``, and not long enough to be lost."""
    meeting.serve()
    job = tiered(meeting, 2, script="meets.py", conf="ttl=60,trunk_grace=4", args=(stop(meeting),))
    with observing(meeting) as observer:
        other = job.node(1)
        observer.wait_members(other)  # it leads
        first = job.node(0)
        before = in_one_round(first, other)
        os.kill(first.pid, signal.SIGSTOP)
        root = rf"127\.0\.0\.1:{before[0]['RDZV_ROOT_PORT']}"
        other.wait_for(f"{root} is lost")
        eventually(lambda: observer.rounds[-1].state == "over", lambda: outputs([first, other]))
        assert (observer.rounds[-1].number, observer.rounds[-1].cause) == (1, "lost")
        os.kill(first.pid, signal.SIGCONT)
        after = in_one_round(first, other, after=before)
    assert len({report["MASTER_PORT"] for report in (*before, *after)}) == 4
    finish(job, first, other)
    assert restarts(first, other) == {"0"}
    assert [last_rank(first), last_rank(other)] == [0, 1]


def stop(meeting: Meeting) -> Path:
    """The file that ends the workers."""
    return meeting.directory / "stop-none"


def finish(job: Job, *nodes: Agent) -> None:
    """All end well, and nothing stays behind."""
    job.finish(*nodes)
    job.meeting.check_gone(but="rdzv serve")
