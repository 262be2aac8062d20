"""Every exit code, by a launch that ends with it: of each class of errors, and of workers and signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from kits.launcher.harness import Agent, Cluster, plug_in

from rdzv_plugins import errors

HOOKS = """
import os
from rdzv_plugins import Backend, NodeCheck, hookimpl
from rdzv_plugins.errors import JoinVetoed, NotNeeded, RdzvError

@hookimpl
def rdzv_before_join(request):
    if os.environ["TEST_CODE"] == "77":
        raise JoinVetoed("a device of this node is broken")
    if os.environ["TEST_CODE"] == "66":
        raise NotNeeded("this node comes too late")
    if os.environ["TEST_CODE"] == "70":
        raise RdzvError("nobody has thought of this")

@hookimpl
def rdzv_preflight(request):
    return NodeCheck("fan", "broken", "it stands still")
"""


@pytest.fixture
def hooks(tmp_path: Path) -> str:
    return plug_in(tmp_path, "rdzv_test_codes", HOOKS)


def alone(cluster: Cluster, *options: object, plan: str = "-", **env: str) -> Agent:
    return cluster.start(["rdzv-run", *options, cluster.script("fails.py"), cluster.directory, 1, plan], **env)


def static(cluster: Cluster, rank: int, *options: object, nnodes: int = 2, timeout: int = 60) -> Agent:
    where = [f"--nnodes={nnodes}", f"--node-rank={rank}", f"--rdzv-endpoint={cluster.endpoint}"]
    return alone(cluster, *where, f"--rdzv-conf=timeout={timeout}", *options)


def _done(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster)


def _wrong_use(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, "--nnodes=none")


def _worker(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, plan="0:3")


def _worker_killed(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, plan="0:-9")


def _agent_stopped(cluster: Cluster, hooks: str) -> Agent:
    agent = cluster.start(["rdzv-run", cluster.script("waits.py"), cluster.directory / "stop", "-1"])
    agent.wait_for("rank 0 begins")
    os.kill(agent.pid, signal.SIGTERM)
    return agent


def _preempted(cluster: Cluster, hooks: str) -> Agent:
    agent = cluster.start(["rdzv-run", "--preempt-grace=1", cluster.script("waits.py"), cluster.directory / "s", "-1"])
    agent.wait_for("rank 0 begins")
    os.kill(agent.pid, signal.SIGTERM)
    return agent


def _nobody_there(cluster: Cluster, hooks: str) -> Agent:
    return static(cluster, 1, timeout=1)


def _no_such_plugin(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, "--rdzv-backend=etcd-v2", "--rdzv-endpoint=127.0.0.1:1")


def _internal(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, PYTHONPATH=hooks, TEST_CODE="70")


def _no_worker(cluster: Cluster, hooks: str) -> Agent:
    program = cluster.directory / "program"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    return cluster.start(["rdzv-run", "--no-python", program])


def _never_complete(cluster: Cluster, hooks: str) -> Agent:
    return static(cluster, 0, timeout=1)


def _other_run(cluster: Cluster, hooks: str) -> Agent:
    static(cluster, 0, "--rdzv-id=one")
    return static(cluster, 1, "--rdzv-id=another")


def _vetoed(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, PYTHONPATH=hooks, TEST_CODE="77")


def _not_needed(cluster: Cluster, hooks: str) -> Agent:
    """As a rendezvous says it; when it does: tests/simulation/test_scenarios_elastic.py."""
    return alone(cluster, PYTHONPATH=hooks, TEST_CODE="66")


def _other_settings(cluster: Cluster, hooks: str) -> Agent:
    static(cluster, 0, nnodes=3)
    return static(cluster, 1, nnodes=2)


def _unfit(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, "--preflight=plugins", PYTHONPATH=hooks, TEST_CODE="83")


def _loop(cluster: Cluster, hooks: str) -> Agent:
    return alone(cluster, "--max-restarts=9", plan="0:NameError")


def _hung(cluster: Cluster, hooks: str) -> Agent:
    return cluster.start(["rdzv-run", "--hang-timeout=1", cluster.script("stands.py"), "--plain"])


ENDS: dict[int, Callable[[Cluster, str], Agent]] = {
    0: _done,
    2: _wrong_use,
    3: _worker,
    66: _not_needed,
    68: _nobody_there,
    69: _no_such_plugin,
    70: _internal,
    71: _no_worker,
    75: _never_complete,
    76: _other_run,
    77: _vetoed,
    78: _other_settings,
    80: _hung,
    81: _preempted,
    82: _loop,
    83: _unfit,
    137: _worker_killed,
    143: _agent_stopped,
}


@pytest.mark.parametrize("code", ENDS)
def test_a_launch_ends_with_it(cluster: Cluster, hooks: str, code: int) -> None:
    agent = ENDS[code](cluster, hooks)
    assert agent.wait(60) == code, agent.text


def test_the_code_of_every_class_is_tried() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert {each.exit_code for each in classes if issubclass(each, errors.RdzvError)} <= ENDS.keys()
