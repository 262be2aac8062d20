"""The agent's loop: asks before it counts a failure, and looks at no wall clock."""

from __future__ import annotations

import os
import re
import subprocess
import time

import pytest
from kits.launcher.clock_ahead import ahead
from kits.launcher.elastic_kit import (
    Job,
    Meeting,
    in_one_round,
    observing,
    outputs,
    parallel_only,
    restarts,
    worlds,
    write_at_once,
)
from kits.launcher.harness import Agent, wait_until


@parallel_only  # the agent's decision, whatever the service
def test_own_failures_use_up_restarts_and_lost_nodes_do_not(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, "1:2", conf="last_call_timeout=80", restarts=1)
    first, second = job.node(0), job.node(1)
    before = in_one_round(first, second)
    write_at_once(meeting.directory / "crash-0", "3")
    after = in_one_round(first, second, after=before)
    assert after[0]["TORCHELASTIC_RESTART_COUNT"] == "1"
    job.kill_node(second)
    (alone,) = in_one_round(first)
    assert alone["TORCHELASTIC_RESTART_COUNT"] == "1"
    assert "restarting the workers: restart 1 of 1" in first.text
    again = job.node(1)
    in_one_round(first, again)
    assert first.reports()[-1]["TORCHELASTIC_RESTART_COUNT"] == "1"
    write_at_once(meeting.directory / "crash-0", "5")
    assert [first.wait(), again.wait()] == [5, 5], outputs([first, again])
    assert "restarts used on this node: 1 of 1" in first.text
    for node in (first, again):
        summary = node.text.rpartition("rdzv-run: the job failed.")[2]
        assert "first failure: rank 0 (node 0 on " in summary
        assert "ended with exit code 5" in summary


@pytest.fixture(scope="module")
def an_hour_ahead(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process whose wall clock is an hour ahead."""
    return ahead(tmp_path_factory.mktemp("clock"))


def test_clocks_that_disagree_by_an_hour_change_nothing(meeting: Meeting, an_hour_ahead: dict[str, str]) -> None:
    """Neither the agents' nor the workers': a node is lost by silence, measured by one clock alone."""
    date = subprocess.run(["date", "+%s"], env=os.environ | an_hour_ahead, capture_output=True, text=True, check=True)
    assert abs(int(date.stdout) - time.time() - 3600) < 600, "the library works"
    meeting.serve()
    job = Job(meeting, 2, conf="ttl=10,timeout=120")
    ahead, right = job.node(0, **an_hour_ahead), job.node(1)
    with observing(meeting) as observer:
        in_one_round(ahead, right)
        seen = time.monotonic()
        wait_until(lambda: time.monotonic() > seen + 21, 60, lambda: "")  # two ttls and more, in which all is to stay
        assert observer.members().keys() == {ahead.pid, right.pid}
        assert [(each.number, each.state) for each in observer.rounds] == [(1, "complete")]
    job.finish(ahead, right)
    assert worlds(ahead) == worlds(right) == [2]
    assert restarts(ahead, right) == {"0"}
    apart = (first_stamp(ahead) - first_stamp(right)) % (24 * 3600)
    assert abs(apart - 3600) < 600, "it did live in another hour"


def first_stamp(agent: Agent) -> int:
    """When it printed its first line by its own clock, in seconds of the day."""
    found = re.match(r"(\d\d):(\d\d):(\d\d)", agent.text)
    assert found, agent.text
    hours, minutes, seconds = map(int, found.groups())
    return (hours * 60 + minutes) * 60 + seconds
