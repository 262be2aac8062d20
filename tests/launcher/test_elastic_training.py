"""Real training over gloo that goes on from its checkpoints while its nodes go and come, by ``parallel``."""

from __future__ import annotations

import pytest
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, parallel_only, restarts, trained, worlds

pytestmark = pytest.mark.thorough  # order: simulation


@parallel_only  # over etcd test_elastic_losses.py loses rank 0, and counts the steps
def test_training_survives_the_loss_and_the_return_of_nodes_without_a_step_lost_or_done_twice(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, "1:2", conf="last_call_timeout=80")
    first, second = job.node(0), job.node(1)
    before = in_one_round(first, second)
    job.wait_step(first, second)
    job.kill_node(second)
    alone = in_one_round(first)
    second = job.node(1)
    both = in_one_round(first, second)
    job.kill_node(first)  # the one that writes the checkpoints
    after = in_one_round(second)
    first = job.node(0)
    last = in_one_round(first, second)
    job.finish(first, second)
    started = [reports[0]["FROM"] for reports in (before, alone, both, after, last)]
    assert started == sorted(started)
    assert started[0] == 0 < started[1]
    assert len({report["FROM"] for report in last}) == 1, "all ranks go on from the same step"
    assert worlds(second) == [2, 1, 2]
    assert restarts(first, second) == {"0"}
    assert trained(first) == trained(second) > started[-1]
