"""Whether workers that failed are started again: what all nodes count together, and what is known of the cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kits.launcher.harness import Agent, Cluster

BACKENDS = ["static", "c10d", "parallel"]


def nodes(cluster: Cluster, backend: str, plan: str, *, restarts: int | None, conf: str) -> list[Agent]:
    """Two nodes with one worker each."""
    given = {} if restarts is None else {"restarts": restarts}
    return cluster.pair("fails.py", cluster.directory, 2, plan, backend=backend, conf=conf, **given)


def ends(agents: list[Agent], code: int) -> list[str]:
    """The summaries, on all nodes, after checking the exit codes."""
    assert [agent.wait(90) for agent in agents] == [code] * len(agents), "\n".join(agent.text for agent in agents)
    return [agent.text.rpartition("rdzv-run: the job failed.")[2] for agent in agents]


def starts(directory: Path) -> int:
    """In how many rounds rank 0 was started."""
    return len(list(directory.glob("start-*-0")))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_failure_three_times_in_a_row_ends_the_job_on_all_nodes(cluster: Cluster, backend: str) -> None:
    """On another node each time: it is the job's, and no node's own."""
    agents = nodes(cluster, backend, "0:NameError,1:NameError,0:NameError", restarts=9, conf="")
    for summary in ends(agents, 82):
        assert "This is a crash loop: 3 times in a row NameError at " in summary
        assert "/fails.py:" in summary
        assert "first failure: rank " in summary
    assert starts(cluster.directory) == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_budget_of_the_job_is_counted_over_all_nodes(cluster: Cluster, backend: str) -> None:
    """Each node has used one of its nine, and without --max-restarts the budget is what each of them has."""
    agents = nodes(cluster, backend, "0:3,1:4,0:5", restarts=9, conf="job_restarts=2")
    for summary in ends(agents, 5):
        assert "The restarts of the job are used up: --rdzv-conf job_restarts=2, over all nodes." in summary
    assert starts(cluster.directory) == 3


def test_with_the_switch_off_it_is_as_under_torchrun(cluster: Cluster) -> None:
    """Also what would be a loop is started again until the restarts are used up, and the worker's code is the end."""
    agent = cluster.run(
        "fails.py", cluster.directory, 1, "0:NameError", restarts=4, conf="crash_loop=off,restart_delay=0"
    )
    (summary,) = ends([agent], 1)
    assert "crash loop" not in agent.text
    assert "restarts used on this node: 4 of 4" in summary
    assert starts(cluster.directory) == 5


def test_by_default_a_job_that_fails_three_times_alike_may_yet_be_done(cluster: Cluster) -> None:
    """What is not the text of the program may heal. The restarts wait, from the third on."""
    plan = ",".join(["0:ConnectionError"] * 3 + ["0:7"] + ["-"])
    agent = cluster.run("fails.py", cluster.directory, 1, plan, restarts=4, conf="restart_delay=0.2")
    assert agent.wait(90) == 0, agent.text
    assert "3 times in a row ConnectionError at " in agent.text
    said = re.findall(r"restarting the workers: (.*)", agent.text)
    assert said == ["restart 1 of 4", "restart 2 of 4", "restart 3 of 4, in 0.2 s", "restart 4 of 4, in 0.4 s"]


def test_without_max_restarts_the_budget_of_the_job_is_that_of_the_node(cluster: Cluster) -> None:
    command = ["rdzv-run", "--rdzv-conf=job_restarts=1", cluster.script("fails.py"), cluster.directory, 1, "0:3,-"]
    assert cluster.start(command).wait(60) == 0
    assert starts(cluster.directory) == 2


def test_a_failure_while_importing_and_a_signal_are_called_what_they_are(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text("import json\nimport nothing_of_the_kind\n")
    imports = cluster.start(["rdzv-run", tmp_path / "imports.py"])
    killed = cluster.run("fails.py", cluster.directory, 1, "0:-9")
    (summary,) = ends([imports], 1)
    assert "It failed while it imported its modules: ModuleNotFoundError at " in summary
    (summary,) = ends([killed], 137)
    assert "out-of-memory killer" in summary
