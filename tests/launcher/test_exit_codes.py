"""Every exit code, by a launch that ends with it: of each class of errors, and of workers and signals."""

from __future__ import annotations

import os
import signal

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


CODES = (0, 2, 3, 66, 68, 69, 70, 71, 75, 76, 77, 78, 80, 81, 82, 83, 137, 143)


def started(cluster: Cluster, code: int) -> Agent:
    """A launch that ends with this code."""

    def alone(*options: object, plan: str = "-", **env: str) -> Agent:
        return cluster.start(["rdzv-run", *options, cluster.script("fails.py"), cluster.directory, 1, plan], **env)

    def node(rank: int, *options: object, nnodes: int = 2, timeout: int = 60) -> Agent:
        where = [f"--nnodes={nnodes}", f"--node-rank={rank}", f"--rdzv-endpoint={cluster.endpoint}"]
        return alone(*where, f"--rdzv-conf=timeout={timeout}", *options)

    def hooked(*options: object) -> Agent:
        return alone(*options, PYTHONPATH=plug_in(cluster.directory, "rdzv_test_codes", HOOKS), TEST_CODE=str(code))

    def stopped(*options: object) -> Agent:
        agent = cluster.start(["rdzv-run", *options, cluster.script("waits.py"), cluster.directory / "stop", "-1"])
        agent.wait_for("rank 0 begins")
        os.kill(agent.pid, signal.SIGTERM)
        return agent

    match code:
        case 0:
            return alone()
        case 2:
            return alone("--nnodes=none")
        case 3:
            return alone(plan="0:3")
        case 66 | 70 | 77:  # when a rendezvous says 66: tests/unit/test_agent_decisions.py
            return hooked()
        case 68:
            return node(1, timeout=1)
        case 69:
            return alone("--rdzv-backend=etcd-v2", "--rdzv-endpoint=127.0.0.1:1")
        case 71:
            program = cluster.directory / "program"
            program.write_text("#!/nowhere/interpreter\n")
            program.chmod(0o755)
            return cluster.start(["rdzv-run", "--no-python", program])
        case 75:
            return node(0, timeout=1)
        case 76:
            node(0, "--rdzv-id=one")
            return node(1, "--rdzv-id=another")
        case 78:
            node(0, nnodes=3)
            return node(1, nnodes=2)
        case 80:
            return cluster.start(["rdzv-run", "--hang-timeout=1", cluster.script("stands.py"), "--plain"])
        case 81:
            return stopped("--preempt-grace=1")
        case 82:
            return alone("--max-restarts=9", plan="0:NameError")
        case 83:
            return hooked("--preflight=plugins")
        case 137:
            return alone(plan="0:-9")
        case _:
            return stopped()


@pytest.mark.parametrize("code", CODES)
def test_a_launch_ends_with_it(cluster: Cluster, code: int) -> None:
    agent = started(cluster, code)
    assert agent.wait(60) == code, agent.text


def test_the_code_of_every_class_is_tried() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert {each.exit_code for each in classes if issubclass(each, errors.RdzvError)} <= {*CODES}
