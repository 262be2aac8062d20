"""How a job ends: who failed first, who waits for whom, signals, and that nothing stays behind."""

from __future__ import annotations

import os
import signal

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster, error_of, server


def last_lines(agent: Agent) -> str:
    """The summary: from ``the job failed`` to the end of the output."""
    return agent.text.rpartition("rdzv-run: the job failed.")[2]


def test_summary_has_the_last_lines_of_stderr_and_is_last_on_the_screen(cluster: Cluster) -> None:
    agent = cluster.run("plain.py", "fail", 4)
    assert agent.wait() == 4
    summary = last_lines(agent)
    assert "stderr line 29\n" in summary
    assert "stderr line 9\n" not in summary, "only the last lines are repeated"
    assert agent.text.count("stderr line 9\n") == 1, "and all of them were passed on"


@pytest.mark.thorough
def test_summary_has_stderr_also_when_it_goes_elsewhere(cluster: Cluster) -> None:
    for logs in ("--redirects=3", "--tee=3", "--local-ranks-filter=1"):
        agent = cluster.run("plain.py", "fail", 4, options=[logs, f"--log-dir={cluster.directory}/logs"])
        assert agent.wait() == 4
        assert "stderr line 29\n" in last_lines(agent)


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of one's own needs root")
@pytest.mark.parametrize(
    ("disk_is", "options", "code"),
    [
        ("full from the start", "size=1M,nr_inodes=1", 71),
        ("full when the workers write", "size=1M", 1),
        ("read-only", "ro", 2),
    ],
)
def test_disk_that_takes_no_logs_is_named(cluster: Cluster, disk_is: str, options: str, code: int) -> None:
    """A tmpfs in which there is room for no file, or which the worker fills before it says anything."""
    disk = cluster.directory / "disk"
    disk.mkdir()
    shell = f'mount -t tmpfs -o {options} tmpfs {disk} && exec "$@"'
    worker = f'head --bytes=2M /dev/zero > {disk}/all 2>/dev/null; exec python "$@"'
    command = ["--no-python", "/bin/sh", "-c", worker, "sh", cluster.script("plain.py"), "fail", 4]
    agent = cluster.start(
        ["rdzv-run", f"--log-dir={disk}", "--redirects=3", *command],
        before=["/usr/bin/unshare", "--mount", "/bin/sh", "-c", shell, "sh"],
    )
    assert agent.wait() == code, agent.text
    assert str(disk) in agent.text


def test_every_node_names_the_first_failure(cluster: Cluster) -> None:
    agents = cluster.pair("report.py", "fail", 3, 7, backend="parallel", nproc=2)
    assert [agent.wait() for agent in agents] == [7, 7], agents[0].text + agents[1].text
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


def test_who_works_is_waited_for_longer_than_the_exit_barriers_time_out(cluster: Cluster) -> None:
    """That one is for nodes that are lost."""
    stop = cluster.directory / "stop"
    options = ["--exit-barrier-timeout=1", "-v"]
    agents = cluster.pair("waits.py", stop, 0, backend="parallel", conf="last_call_timeout=60", options=options)
    eventually(lambda: all("begins" in agent.text for agent in agents), lambda: agents[0].text + agents[1].text)
    done = next(agent for agent in agents if "rank 0 begins" in agent.text)
    done.wait_for("waiting for node rank 1(.|\n)*waiting for node rank 1")  # said again when a time-out is over
    stop.touch()
    assert [agent.wait() for agent in agents] == [0, 0], agents[0].text + agents[1].text


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
            "while [ ! -e started ]; do sleep 0.02; done\n[ $CODE = wait ] && exec sleep 600\nexit $CODE\n",
        ),
    ):
        (cluster.directory / name).write_text(text)
        (cluster.directory / name).chmod(0o755)
    return ["--no-python", cluster.directory / "worker"]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("setsid ./background", 0),
        pytest.param("env -i PATH=$PATH setsid ./background", 3, marks=pytest.mark.thorough),
    ],
)
def test_what_is_left_in_the_background_is_told_to_end_and_named(cluster: Cluster, how: str, code: int) -> None:
    agent = cluster.start(["rdzv-run", *leaving(cluster, how)], CODE=str(code))
    assert agent.wait() == code, agent.text
    pid = (cluster.directory / "started").read_text().strip()
    assert f"background (pid {pid})" in agent.text
    assert (cluster.directory / "told").exists()
    assert (cluster.directory / "saved").exists() or code, "the agent stays as long as that takes"
    cluster.check_gone()


def test_what_is_in_the_background_is_left_if_the_user_wants_that(cluster: Cluster) -> None:
    """With what it starts later, which has the mark of the agent, too."""
    command = ["rdzv-run", *leaving(cluster, "setsid ./background")]
    agent = cluster.start(command, CODE="0", PET_LEAVE_BACKGROUND="1")
    assert agent.wait() == 0, agent.text
    pid = int((cluster.directory / "started").read_text())
    try:
        assert pid in cluster.processes()
        assert not (cluster.directory / "told").exists()
    finally:
        cluster.kill(pid)
    cluster.wait_gone()
