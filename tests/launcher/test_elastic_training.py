"""Real training over gloo that goes on from its checkpoints while its nodes go and come, by ``parallel``."""

from __future__ import annotations

import re
from pathlib import Path

from elastic_kit import Job, Meeting, in_one_round, parallel_only, restarts, trained, worlds
from harness import Agent

DIGITS = Path(__file__).parents[2] / "examples" / "train_digits.py"


@parallel_only  # over etcd test_elastic_losses.py and test_etcd_training.py lose rank 0, and count the steps
def test_training_survives_the_loss_and_the_return_of_nodes_without_a_step_lost_or_done_twice(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, "1:2", conf="last_call_timeout=80")
    first, second = job.node(0), job.node(1)
    before = in_one_round(first, second)
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


@parallel_only  # by etcd in test_etcd_training.py, with three nodes
def test_digits_are_learnt_though_a_node_is_lost_and_another_one_comes(meeting: Meeting) -> None:
    meeting.serve()
    checkpoint = meeting.directory / "checkpoint.pt"
    epochs = 10

    def node(rank: int) -> Agent:
        return meeting.run(
            str(DIGITS),
            *(f"--epochs={epochs}", f"--checkpoint={checkpoint}", "--epoch-seconds=0.8", "--cpu"),
            backend="parallel",
            nnodes="1:2",
            rank=rank,
            conf="last_call_timeout=80",
        )

    first, second = node(0), node(1)
    first.wait_for(r"epoch 2/\d+: .* world size 2")
    for pid in (second.pid, *meeting.workers(second, "train_digits.py")):
        meeting.kill(pid)
    first.wait_for(r"epoch \d+/\d+: .* world size 1, restarts 0")
    again = node(1)
    assert [first.wait(), again.wait()] == [0, 0], first.text + again.text
    resumed = [int(epoch) for epoch in re.findall(r"rank 0: resumed from epoch (\d+)", first.text)]
    assert resumed == sorted(resumed)
    assert resumed[0] >= 2
    done = [int(epoch) for epoch in re.findall(r"epoch (\d+)/\d+: ", first.text)]
    assert done == list(range(1, epochs + 1)), "no epoch is left out or done twice"
    accuracy = first.wait_for(r"test accuracy: ([\d.]+) %")
    assert float(accuracy[1]) > 85
