"""Real training whose nodes meet at an etcd: the loss of any of them, the first one too, is the loss of one node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kits.launcher.elastic_kit import EtcdMeeting, outputs
from kits.launcher.harness import Agent, wait_until
from kits.launcher.quick_digits import quick_digits


@pytest.fixture
def backend() -> str:
    return "etcd"


def wait_at(epoch: int, script: Path) -> None:
    """Two who train go on from that epoch when another one has come: they are stopped for it, and begin again."""
    pace = "        time.sleep(max(0.0, start + args.epoch_seconds - time.monotonic()))\n"
    before, found, after = script.read_text().partition(pace)
    assert found
    hold = f"        while world == 2 and epoch >= {epoch}:\n            time.sleep(0.05)\n"
    script.write_text(f"{before}{pace}{hold}{after}")


def test_digits_are_learnt_by_three_nodes_though_rank_0_is_lost_and_another_one_comes(meeting: EtcdMeeting) -> None:
    script, checkpoint = quick_digits(meeting.directory), meeting.directory / "checkpoint.pt"
    epochs = 30
    wait_at(20, script)

    def node() -> Agent:
        return meeting.run(
            str(script),
            *(f"--epochs={epochs}", f"--checkpoint={checkpoint}", "--epoch-seconds=0.8", "--cpu"),
            backend="etcd",
            nnodes="2:3",
            conf="ttl=10,last_call_timeout=80,allow_same_host=true",
            options=[f"--rdzv-id={meeting.run_id}"],
        )

    def rank_0_of(size: int, *nodes: Agent) -> Agent:
        """Who writes the checkpoints, once one of that many ranks has been written."""
        said = re.compile(rf"epoch \d+/\d+: .* world size {size}, restarts 0")
        found: Agent = wait_until(
            lambda: next(filter(lambda node: said.search(node.text), nodes), None), 90, lambda: outputs(nodes)
        )
        return found

    nodes = [node() for _ in range(3)]
    first = rank_0_of(3, *nodes)
    for pid in (first.pid, *meeting.workers(first, "train_digits.py")):
        meeting.kill(pid)
    others = [each for each in nodes if each is not first]
    second = rank_0_of(2, *others)
    others.append(node())
    assert [each.wait() for each in others] == [0, 0, 0], outputs(others)
    assert rank_0_of(3, *others) is second, "who stays keeps its rank"
    done = [int(epoch) for each in (first, second) for epoch in re.findall(r"epoch (\d+)/\d+: ", each.text)]
    assert done == list(range(1, epochs + 1)), "no epoch is left out or done twice"
    resumed = [int(epoch) for epoch in re.findall(r"rank \d: resumed from epoch (\d+)", second.text)]
    assert len(resumed) == 2
    assert 1 <= resumed[0] < resumed[1]
    for each in others:
        assert not re.search(r"restarts [1-9]", each.text)
    assert float(second.wait_for(r"\ntest accuracy: ([\d.]+) %")[1]) > 85
    assert meeting.held(meeting.run_id) == {}
