"""Whether workers that failed are started again: what all nodes count together, and what is known of the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.launcher.harness import Agent, Cluster

pytestmark = pytest.mark.thorough


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


@pytest.mark.parametrize("backend", ["c10d", "parallel"])  # by static in test_exit_codes.py, alone
def test_the_same_failure_three_times_in_a_row_ends_the_job_on_all_nodes(cluster: Cluster, backend: str) -> None:
    """On another node each time: it is the job's, and no node's own."""
    agents = nodes(cluster, backend, "0:NameError,1:NameError,0:NameError", restarts=9, conf="")
    for summary in ends(agents, 82):
        assert all(each in summary for each in ("NameError", "/fails.py:", "first failure: rank ")), summary
    assert starts(cluster.directory) == 3


def test_a_failure_while_importing_and_a_signal_are_called_what_they_are(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text("import json\nimport nothing_of_the_kind\n")
    imports = cluster.start(["rdzv-run", tmp_path / "imports.py"])
    killed = cluster.run("fails.py", cluster.directory, 1, "0:-9")
    (summary,) = ends([imports], 1)
    assert "ModuleNotFoundError" in summary
    (summary,) = ends([killed], 137)
    assert "SIGKILL" in summary
