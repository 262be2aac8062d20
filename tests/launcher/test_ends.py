"""How a job ends: with which exit code, who failed first, who waits for whom, and that nothing stays behind."""

from __future__ import annotations

import os
import re
import signal

import pytest
from kits.eventually import eventually
from kits.launcher.harness import AgentProcess, Cluster, error_of, plug_in, server

from rdzv_plugins import errors
from rdzv_plugins.testing.launched import outputs

HOOKS = """
import os
from rdzv_plugins import NodeCheck, hookimpl
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


def started(cluster: Cluster, code: int) -> AgentProcess:
    """A launch that ends with this code."""

    def alone(*options: object, plan: str = "-", **env: str) -> AgentProcess:
        return cluster.start(["rdzv-run", *options, cluster.script("fails.py"), cluster.directory, 1, plan], **env)

    def node(rank: int, *options: object, nnodes: int = 2, timeout: int = 60) -> AgentProcess:
        where = [f"--nnodes={nnodes}", f"--node-rank={rank}", f"--rdzv-endpoint={cluster.endpoint}"]
        return alone(*where, f"--rdzv-conf=timeout={timeout}", *options)

    def hooked(*options: object) -> AgentProcess:
        return alone(*options, PYTHONPATH=plug_in(cluster.directory, "rdzv_test_codes", HOOKS), TEST_CODE=str(code))

    def stopped(*options: object) -> AgentProcess:
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
    assert agent.wait() == code, agent.text


def test_the_code_of_every_class_is_tried() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert {each.exit_code for each in classes if issubclass(each, errors.RdzvError)} <= {*CODES}


def last_lines(agent: AgentProcess) -> str:
    """The summary: from ``the job failed`` to the end of the output."""
    return agent.text.rpartition("rdzv-run: the job failed.")[2]


ELSEWHERE = ("--redirects=3", "--tee=3", "--local-ranks-filter=1")


@pytest.mark.parametrize("logs", ["", *(pytest.param(each, marks=pytest.mark.thorough) for each in ELSEWHERE)])
def test_summary_has_the_last_lines_of_stderr_and_is_last_on_the_screen(cluster: Cluster, logs: str) -> None:
    agent = cluster.run("plain.py", "fail", 4, options=[logs, f"--log-dir={cluster.directory}/logs"] if logs else [])
    assert agent.wait() == 4
    summary = last_lines(agent)
    assert "stderr line 29\n" in summary
    assert "stderr line 9\n" not in summary, "only the last lines are repeated"
    assert logs or agent.text.count("stderr line 9\n") == 1, "and all of them were passed on"


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of one's own needs root")
@pytest.mark.parametrize(
    ("flags", "options", "fills", "code"),
    [
        (["--log-dir", "--redirects=3"], "size=1M,nr_inodes=1", "none", 71),
        (["--log-dir", "--redirects=3"], "size=1M", "worker", 1),
        (["--log-dir", "--redirects=3"], "ro", "none", 2),
        (["--timeline"], "size=4k", "before", 4),
    ],
    ids=["full from the start", "full when the workers write", "read-only", "full for the timeline"],
)
def test_disk_that_takes_no_logs_is_named(
    cluster: Cluster, flags: list[str], options: str, fills: str, code: int
) -> None:
    """A tmpfs in which there is room for no file, or which is filled before anything is said."""
    disk = cluster.directory / "disk"
    disk.mkdir()
    fill = f"head --bytes=2M /dev/zero > {disk}/all 2>/dev/null"
    shell = f'mount -t tmpfs -o {options} tmpfs {disk}; {fill if fills == "before" else ":"}; exec "$@"'
    worker = f'{fill if fills == "worker" else ":"}; exec python "$@"'
    command = ["--no-python", "/bin/sh", "-c", worker, "sh", cluster.script("plain.py"), "fail", 4]
    agent = cluster.start(
        ["rdzv-run", f"{flags[0]}={disk}", *flags[1:], *command],
        before=["/usr/bin/unshare", "--mount", "/bin/sh", "-c", shell, "sh"],
    )
    assert agent.wait() == code, agent.text
    assert str(disk) in agent.text


def test_every_node_names_the_first_failure(cluster: Cluster) -> None:
    agents = cluster.pair("fails.py", cluster.directory, 4, "3:7", backend="parallel", nproc=2)
    assert [agent.wait() for agent in agents] == [7, 7], outputs(agents)
    for agent in agents:
        assert "first failure: rank 3 (node 1 on " in last_lines(agent)
        assert "rank 3 says its last words" in last_lines(agent)


def test_nohup_survives_a_hang_up(cluster: Cluster) -> None:
    agent = cluster.start(
        ["rdzv-run", "--nproc-per-node=1", cluster.script("plain.py"), "sleep"], before=["/usr/bin/nohup"]
    )
    agent.wait_for("ready")
    (worker,) = cluster.workers(agent, "plain.py")
    os.kill(agent.pid, signal.SIGHUP)
    os.kill(worker, signal.SIGHUP)
    os.kill(agent.pid, signal.SIGTERM)  # handled after the hang-up: had that counted, the code would be 129
    assert agent.wait() == 143


def test_signal_reaches_the_workers_and_nothing_is_left(cluster: Cluster) -> None:
    agent = cluster.run("plain.py", "children", nproc=2)
    agent.wait_for("ready(.|\n)*ready")
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 143
    cluster.wait_gone()


@pytest.mark.thorough
def test_who_works_is_waited_for_longer_than_the_exit_barriers_time_out(cluster: Cluster) -> None:
    """That one is for nodes that are lost."""
    stop = cluster.directory / "stop"
    options = ["--exit-barrier-timeout=1", "-v"]
    agents = cluster.pair("waits.py", stop, 0, backend="parallel", conf="last_call_timeout=60", options=options)
    eventually(lambda: all("begins" in agent.text for agent in agents), lambda: outputs(agents))
    done = next(agent for agent in agents if "rank 0 begins" in agent.text)
    done.wait_for("waiting for node rank 1(.|\n)*waiting for node rank 1")  # said again when a time-out is over
    stop.touch()
    assert [agent.wait() for agent in agents] == [0, 0], outputs(agents)


def test_port_in_use_names_the_process_that_holds_it(cluster: Cluster) -> None:
    with server(cluster.port, b""):
        message = error_of(cluster.run("plain.py", "sleep", backend="static", nnodes=2, rank=0), 68)
    assert f"port {cluster.port} " in message
    assert f"pid {os.getpid()} (" in message


BACKGROUND = """#!/bin/sh
trap ': > told; sleep 1; : > saved; exit 0' TERM
echo $$ > pid
mv pid started
while :; do sleep 0.05; done
"""


def leaving(cluster: Cluster, how: str) -> list[object]:
    """A command that leaves a process in the background, started by ``how``, and ends with the code $CODE."""
    for name, text in (
        ("background", BACKGROUND),
        (
            "worker",
            f"#!/bin/sh\n{how} < /dev/null > /dev/null 2>&1 &\n"
            "while [ ! -e started ]; do sleep 0.02; done\nexit $CODE\n",
        ),
    ):
        (cluster.directory / name).write_text(text)
        (cluster.directory / name).chmod(0o755)
    return ["rdzv-run", "--no-python", cluster.directory / "worker"]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("setsid ./background", 0),
        pytest.param("env -i PATH=$PATH setsid ./background", 3, marks=pytest.mark.thorough),
    ],
)
def test_what_is_left_in_the_background_is_told_to_end_and_named(cluster: Cluster, how: str, code: int) -> None:
    agent = cluster.start(leaving(cluster, how), CODE=str(code))
    assert agent.wait() == code, agent.text
    pid = (cluster.directory / "started").read_text().strip()
    # in state D it is while it starts a program: such a shell uses vfork
    assert re.search(rf"background \(pid {pid}(, state D)?\)", agent.text)
    assert (cluster.directory / "told").exists()
    assert (cluster.directory / "saved").exists() or code, "the agent stays as long as that takes"
    cluster.check_gone()


def test_what_is_in_the_background_is_left_if_the_user_wants_that(cluster: Cluster) -> None:
    """With what it starts later, which has the mark of the agent, too."""
    agent = cluster.start(leaving(cluster, "setsid ./background"), CODE="0", PET_LEAVE_BACKGROUND="1")
    assert agent.wait() == 0, agent.text
    pid = int((cluster.directory / "started").read_text())
    try:
        assert pid in cluster.processes()
        assert not (cluster.directory / "told").exists()
    finally:
        cluster.kill(pid)
    cluster.wait_gone()
