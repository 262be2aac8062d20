"""What is lost while workers train: the leader, rank 0, the service; and a leader that lives and cannot act.

In other orders of events: the scenarios of tests/simulation. The loss of etcd itself is in test_etcd.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kits.launcher.elastic_kit import (
    Job,
    Meeting,
    in_one_round,
    last_rank,
    named,
    observing,
    outputs,
    parallel_only,
    restarts,
    trained,
    worlds,
)
from kits.launcher.harness import plug_in

pytestmark = pytest.mark.thorough


def test_leader_and_then_rank_0_are_lost_while_the_workers_run(meeting: Meeting) -> None:
    """No step of the training is lost or done twice."""
    meeting.serve()
    job = Job(meeting, "1:3", conf="last_call_timeout=80")
    with observing(meeting) as observer:
        leader = job.node(2)
        observer.wait_members(leader)
        first, second = job.node(0), job.node(1)
        before = in_one_round(leader, first, second)
        job.wait_step(leader, first, second)
        assert observer.leader() == leader.pid
        job.kill_node(leader)
        in_one_round(first, second, after=before)
        assert [last_rank(node) for node in (first, second)] == [0, 1]
        job.kill_node(first)  # the one that writes the checkpoints
        in_one_round(second)
        assert observer.leader() == second.pid
    job.finish(second)
    assert worlds(second) == [3, 2, 1]
    assert restarts(second) == {"0"}
    assert trained(second) > second.reports()[-1]["FROM"] > 0
    assert re.search(f"{named(leader)} was lost", second.text), outputs([first, second])
    assert re.search(f"{named(first)} was lost", second.text), outputs([first, second])


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


@parallel_only
def test_leader_that_hangs_in_a_hook_is_followed_by_another(meeting: Meeting, tmp_path: Path) -> None:
    """Its session lives. What it still does is void: here its hook fails, which ends the job if a leader's does."""
    hooks = plug_in(tmp_path, "rdzv_test_hangs", HOOKS)
    meeting.serve()
    release = meeting.directory / "release"
    job = Job(meeting, 3, script="says.py", conf="ttl=10")
    with observing(meeting) as observer:
        stuck = job.node(PYTHONPATH=hooks, HANGS=str(release))
        observer.wait_members(stuck)
        others = [job.node(PYTHONPATH=hooks) for _ in range(2)]
        in_one_round(stuck, *others)
        stuck.wait_for(r"rdzv_assign_ranks \(\S*rdzv_test_hangs.py, line \d+\)")
        assert observer.leader() in [agent.pid for agent in others]
        release.touch()
        stuck.wait_for("too late")
    job.finish(stuck, *others)
