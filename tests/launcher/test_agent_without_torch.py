"""rdzv-run imports neither torch nor numpy, through starts, restarts, losses and ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, outputs, parallel_only
from kits.launcher.harness import Cluster

HOOK = """
import os, sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise AssertionError(f"{name} is imported by an agent")

if "RANK" not in os.environ:  # a worker may
    sys.meta_path.insert(0, Refuses())
"""


@pytest.fixture
def refuses(tmp_path: Path) -> dict[str, str]:
    """Variables of an agent that cannot import torch."""
    place = tmp_path / "refuses"
    place.mkdir()
    (place / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(place)}


def test_static(cluster: Cluster, refuses: dict[str, str]) -> None:
    """A crash, a restart, and the end by a failure. ``c10d``, which is torch's, shows that the refusal works."""
    options = ["--tee=3", "--redirects=3", f"--log-dir={cluster.directory}/logs"]
    agent = cluster.run("plain.py", "fail", 4, nproc=2, restarts=1, options=options, **refuses)
    of_torch = cluster.run("plain.py", "env", "RANK", backend="c10d", **refuses)
    assert agent.wait() == 4, agent.text
    assert "restart 1 of 1" in agent.text
    assert of_torch.wait() != 0
    assert "is imported by an agent" in of_torch.text


@parallel_only  # over etcd the same agent
def test_elastic(meeting: Meeting, refuses: dict[str, str]) -> None:
    """Rank 0's node is lost, and with it the workers' store; another comes, and all ends well."""
    meeting.serve()
    job = Job(meeting, "1:2", script="says.py", conf="last_call_timeout=80")
    first, second = job.node(0, **refuses), job.node(1, **refuses)
    in_one_round(first, second)
    job.kill_node(first)
    in_one_round(second)
    third = job.node(0, **refuses)
    in_one_round(third, second)
    job.finish(third, second)
    assert "is imported by an agent" not in outputs([first, second, third])
