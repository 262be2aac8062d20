"""Nodes that come, go and are lost while a job runs: who is in a round, with which rank, and what it costs.

In other orders of events: the scenarios of tests/simulation; over etcd: the conformance suite, and test_etcd.py.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, last_rank, named, restarts, worlds
from kits.launcher.harness import plug_in

from rdzv_plugins.errors import Preempted
from rdzv_plugins.testing.launched import outputs


def test_node_that_comes_late_joins_and_node_that_is_stopped_leaves(meeting: Meeting) -> None:
    job = Job(meeting, "1:2", script="says.py", conf="last_call_timeout=0,allow_same_host=true")
    first = job.node()
    alone = in_one_round(first)
    first.wait_for(rf"warning: .* 1 of 1:2 nodes.* {meeting.endpoint} ")  # which no other machine can reach
    second = job.node()
    both = in_one_round(first, second)
    assert last_rank(first) == 0, "who stays keeps its rank"
    assert both[0]["PID"] != alone[0]["PID"], "everybody restarts"
    os.kill(second.pid, signal.SIGTERM)
    assert second.wait() == 143
    in_one_round(first)
    job.finish(first)
    assert worlds(first) == [1, 2, 1]
    assert restarts(first, second) == {"0"}
    assert meeting.processes() == {}


def test_spare_takes_the_place_of_a_lost_node_and_another_one_ends_with_the_job(meeting: Meeting) -> None:
    job = Job(meeting, 2, script="says.py", conf="allow_same_host=true")
    first, second = job.node(), job.node()
    before = in_one_round(first, second)
    spares = [job.node(), job.node()]
    for spare in spares:
        spare.wait_for("this node is a spare")
    assert worlds(first) == worlds(second) == [2], "nobody has been disturbed"
    survivor, victim = (first, second) if meeting.listens(first) else (second, first)
    rank = last_rank(survivor)
    job.kill_node(victim)
    survivor.wait_for(f"round 1 is over: {named(victim)} was lost")
    used = eventually(lambda: next((spare for spare in spares if spare.reports()), None), lambda: outputs(spares))
    in_one_round(survivor, used, after=before)
    assert last_rank(survivor) == rank
    (left,) = (spare for spare in spares if spare is not used)
    job.finish(survivor, used, left)
    assert left.reports() == []
    assert restarts(survivor, used) == {"0"}


FAN = """
import os
from rdzv_plugins import NodeCheck, hookimpl

@hookimpl
def rdzv_preflight(request):
    if os.path.exists(os.environ.get("TEST_FAN", "")):
        return NodeCheck("fan", "broken", "it stands still")
"""


def test_a_broken_node_is_left_out_until_the_round_is_over_and_it_is_well(meeting: Meeting, tmp_path: Path) -> None:
    """A plug-in finds it with --preflight."""
    hooks, still = plug_in(tmp_path, "rdzv_test_fan", FAN), tmp_path / "still"
    still.touch()
    flags = ("--preflight=plugins", "--max-restarts=1")
    job = Job(meeting, "2:3", script="says.py", conf="last_call_timeout=60,allow_same_host=true", flags=flags)
    broken = job.node(PYTHONPATH=hooks, TEST_FAN=str(still))
    broken.wait_for("--preflight")  # with variables of its own it takes its time to start
    well = [job.node(), job.node()]
    before = in_one_round(*well)
    for agent in well:
        agent.wait_for("warning: .*fan.*")
    assert not broken.reports()
    still.unlink()
    meeting.kill(job.workers(well[0])[0])
    in_one_round(*well, broken, after=before)
    job.finish(*well, broken)


def test_before_a_node_goes_all_ranks_save_the_same_step_and_the_others_go_on_from_it(meeting: Meeting) -> None:
    """With a notice before preemption, by a call and a signal."""
    meeting.serve()
    stop = meeting.directory / "stop-none"
    flags = ["--preempt-grace=600", "--worker-notice-signal=USR2"]
    args, conf = (stop, 0.02, "handles"), "last_call_timeout=80,ttl=60"
    job = Job(meeting, "2:3", script="saves.py", args=args, conf=conf, flags=flags)
    agents = [job.node(rank) for rank in range(3)]
    before = in_one_round(*agents)
    ranks = {last_rank(agent): agent for agent in agents}
    goes, others = ranks.pop(1), [*ranks.values()]
    os.kill(goes.pid, signal.SIGTERM)
    assert goes.wait() == Preempted.exit_code, outputs(agents)
    found = [json.loads(path.read_text()) for path in sorted(meeting.directory.glob("saved-1-?"))]
    assert len(found) == 3, outputs(agents)
    assert len({(each["step"], each["total"], each["round"]) for each in found}) == 1, found
    assert {(each["node"], *each["signals"]) for each in found} == {(1, signal.SIGUSR2)}
    assert all(each["left"] > 20 for each in found)
    after = in_one_round(*others, after=before)
    assert [report["FROM"] for report in after] == [found[0]["step"]] * 2, "all that was done before is kept"
    assert {report["TORCHELASTIC_RESTART_COUNT"] for report in after} == {"0"}
    stop.touch()
    assert [agent.wait() for agent in others] == [0, 0], outputs(agents)


HOOKS = """
import os, time
from pathlib import Path
from rdzv_plugins import hookimpl

@hookimpl
def rdzv_assign_ranks(request, nodes):
    release = os.environ.get("HANGS")
    while release and not Path(release).exists():
        time.sleep(0.05)
    if release:
        raise RuntimeError("too late")
"""


@pytest.mark.thorough
def test_leader_that_hangs_in_a_hook_is_followed_by_another(meeting: Meeting, tmp_path: Path) -> None:
    """Its session lives. What it still does is void: here its hook fails, which ends the job if a leader's does."""
    hooks = plug_in(tmp_path, "rdzv_test_hangs", HOOKS)
    meeting.serve()
    release = meeting.directory / "release"
    job = Job(meeting, 3, script="says.py", conf="ttl=10")
    stuck = job.node(PYTHONPATH=hooks, HANGS=str(release))
    stuck.wait_for("1 of 3 nodes have joined")  # it leads: the leader says so
    others = [job.node(PYTHONPATH=hooks) for _ in range(2)]
    in_one_round(stuck, *others)
    stuck.wait_for(r"rdzv_assign_ranks \(\S*rdzv_test_hangs.py, line \d+\)")
    release.touch()
    stuck.wait_for("too late")
    job.finish(stuck, *others)
