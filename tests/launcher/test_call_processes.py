"""``elastic_launch`` in scripts of their own: two nodes, beside torch's, and what becomes of it when they are ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from kits import KITS, TESTS
from kits.eventually import eventually
from kits.launcher.harness import Cluster

from rdzv_plugins.testing.launched import Agent, cold, outputs


def start(cluster: Cluster, *arguments: object, **env: str) -> Agent:
    """A caller."""
    return python(cluster, KITS / "launcher" / "calls.py", *arguments, **env)


def python(cluster: Cluster, *arguments: object, **env: str) -> Agent:
    """An interpreter that finds the functions."""
    output = cluster.next_output()
    variables = cluster.env | {"PYTHONPATH": str(TESTS)} | env
    return cluster.add(cold([sys.executable, *map(str, arguments)], output, variables), output)


def said(agent: Agent, code: int = 0) -> dict[str, Any]:
    """All that a caller has said."""
    assert agent.wait() == code, agent.text
    found: dict[str, Any] = {}
    for each in agent.reports():
        found |= each
    return found


def test_two_nodes_with_gloo(cluster: Cluster) -> None:
    """One has torch's configuration; each gets the results of its own workers."""
    agents = [start(cluster, who, rank, 2, 1, cluster.endpoint, "sums") for rank, who in enumerate(["ours", "mixed"])]
    assert [said(agent) for agent in agents] == [{"results": {"0": 1.5}}, {"results": {"1": 1.5}}], outputs(agents)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("act", "method"),
    [("returns", "spawn"), ("raises", "fork"), ("ends", "spawn")],
)
def test_what_a_caller_sees_is_what_torchs_shows(cluster: Cluster, act: str, method: str) -> None:
    """The same script, and both in one run."""
    rest = ["killed"] if act == "ends" else []
    agents = [
        start(cluster, who, 0, 1, 2, "localhost:0" if who == "torch" else "127.0.0.1:0", act, *rest, METHOD=method)
        for who in ("torch", "mixed")
    ]
    theirs, ours = (said(agent) for agent in agents)
    if act == "ends":  # which of both it was
        for found in (theirs, ours):
            found["failed"]["ranks"], found["failed"]["first"][:2] = [], [0, 0]
            found["failed"]["message"] = found["failed"]["message"].partition(" by PID")[0]
    assert ours == theirs, outputs(agents)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "says", "method"),
    [("SIGTERM", {"stopped": "SIGTERM"}, "spawn"), ("SIGINT", {"interrupted": True}, "fork")],
)
def test_signal_stops_the_call_and_not_the_caller(
    cluster: Cluster, tmp_path: Path, number: str, says: dict[str, Any], method: str
) -> None:
    """The workers end, also those that they have started, and the caller goes on."""
    agent = start(cluster, "ours", 0, 1, 2, "", "waits", tmp_path, "environment", METHOD=method)
    wait_started(agent, tmp_path)
    agent.process.send_signal(signal.Signals[number])
    found = said(agent)
    assert found.items() >= says.items(), agent.text
    assert found["again"] == {"0": "a 0 $", "1": "a 1 $"}
    assert (found["handled"], found["threads"]) == (False, 1)
    cluster.wait_gone()


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.thorough)])
def test_caller_that_is_killed_leaves_nothing(cluster: Cluster, tmp_path: Path, method: str) -> None:
    agent = start(cluster, "ours", 0, 1, 2, "", "waits", tmp_path, METHOD=method)
    wait_started(agent, tmp_path)
    cluster.kill(agent.pid)
    agent.wait()
    cluster.wait_gone()


def wait_started(agent: Agent, place: Path) -> None:
    eventually(lambda: {"0", "1"} <= {path.name for path in place.iterdir()}, lambda: agent.text)


@pytest.mark.thorough
def test_classes_of_the_script_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """Also of a script that is run as a module, with flags of the interpreter."""
    (tmp_path / "script.py").write_text(
        "import sys\nfrom rdzv_launcher import LaunchConfig, elastic_launch\n"
        "class Mine:\n    pass\n"
        "def mine(): return Mine(), sys.flags.optimize, __name__\n"
        "if __name__ == '__main__':\n"
        "    found = elastic_launch(LaunchConfig(1, 1, 1, start_method='forkserver'), mine)()[0]\n"
        "    print(type(found[0]) is Mine, *found[1:])\n"
    )
    agent = python(cluster, "-O", "-m", "script", PYTHONPATH=str(tmp_path))
    assert agent.wait() == 0, agent.text
    assert agent.text == "True 1 __mp_main__\n"


@pytest.mark.thorough
def test_caller_needs_no_torch(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise AssertionError('torch is imported')")
    script = tmp_path / "calls_without.py"
    script.write_text(
        "import json\nfrom kits.launcher import called\nfrom rdzv_launcher import *\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork'):\n"
        "        config = LaunchConfig(1, 1, 2, start_method=method, max_restarts=1, shutdown_timeout=5)\n"
        "        print(elastic_launch(config, called.fails_at_first)())\n"
        "        try:\n"
        "            elastic_launch(config, called.raises)('on purpose')\n"
        "        except WorkersFailed as error:\n"
        "            print(repr(error.__cause__))\n"
    )
    agent = python(cluster, script, PYTHONPATH=f"{TESTS}:{tmp_path}")
    assert agent.wait() == 0, agent.text
    lines = [line for line in agent.text.splitlines() if line.startswith(("{", "ValueError("))]
    assert lines == ["{0: '1', 1: '1'}", "ValueError('on purpose')"] * 2
    assert "torch is imported" not in agent.text
