"""How a job ends: exit codes, who failed first, signals, and that nothing stays behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
from contextlib import suppress

import pytest
from kits.launcher.harness import Agent, Cluster, wait_until

BACKENDS = ["static", "c10d", "parallel"]


def last_lines(agent: Agent) -> str:
    """The summary: from ``the job failed`` to the end of the output."""
    return agent.text.rpartition("rdzv-run: the job failed.")[2]


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (-9, 137), (-11, 139)])
def test_exit_code_is_the_workers_own(cluster: Cluster, code: int, expected: int) -> None:
    mode = ("fail", code) if code > 0 else ("kill", -code)
    agent = cluster.run("plain.py", *mode)
    assert agent.wait() == expected
    summary = last_lines(agent)
    how = f"exit code {code}" if code > 0 else f"signal {-code} ({signal.Signals(-code).name})"
    assert f"rank 0 (node 0 on {socket.gethostname()}, local rank 0" in summary
    assert how in summary
    assert "Traceback" not in agent.text


def test_summary_has_the_last_lines_of_stderr_and_is_last_on_the_screen(cluster: Cluster) -> None:
    agent = cluster.run("plain.py", "fail", 4)
    assert agent.wait() == 4
    summary = last_lines(agent)
    assert "  | stderr line 29\n" in summary
    assert "stderr line 9\n" not in summary, "only the last lines are repeated"
    assert agent.text.count("stderr line 9\n") == 1, "and all of them were passed on"
    assert summary.rstrip().endswith("restarts used on this node: 0 of 0 (--max-restarts=N restarts all workers)")


def test_a_failure_is_said_once_and_by_its_rank(cluster: Cluster) -> None:
    """torch says it too, by a local rank; we do only if we see it before torch has reaped the worker."""
    agents = cluster.pair("report.py", "fail", 1, 7, backend="parallel")
    assert [agent.wait() for agent in agents] == [7, 7]
    failed = next(agent for agent in agents if agent.reports()[0]["RANK"] == "1")
    ours = re.findall(
        r"^\S+ rdzv-run error: rank 1 \(node 1 .*, local rank 0, .* ended with exit code 7$", failed.text, re.MULTILINE
    )
    torchs = re.findall(r"failed \(exitcode: 7\) local_rank: 0", failed.text)
    assert len(ours) + len(torchs) == 1, failed.text


@pytest.mark.parametrize("logs", ["--redirects=3", "--tee=3", "--local-ranks-filter=1"])
def test_summary_has_stderr_also_when_it_goes_elsewhere(cluster: Cluster, logs: str) -> None:
    agent = cluster.run("plain.py", "fail", 4, options=[logs, f"--log-dir={cluster.directory}/logs"])
    assert agent.wait() == 4
    assert "  | stderr line 29\n" in last_lines(agent)


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
    refused = rf"rdzv-run: error: --log-dir={disk}: nothing can be written in {disk}: "
    said = {
        71: rf"{refused}no space left on device\n",
        1: rf"  \| \(rdzv-run: No space left on device: {disk}/\S+/stderr.log, so there may have been more\)\n",
        2: rf"{refused}read-only file system\n",
    }[code]
    assert re.search(said, agent.text), agent.text


@pytest.mark.parametrize("backend", ["parallel"])  # by the others below, in cascade.py, which needs no torch
def test_every_node_names_the_first_failure(cluster: Cluster, backend: str) -> None:
    agents = cluster.pair("report.py", "fail", 3, 7, backend=backend, nproc=2)
    assert [agent.wait() for agent in agents] == [7, 7], agents[0].text + agents[1].text
    for agent in agents:
        assert "first failure: rank 3 (node 1 on " in last_lines(agent)
        assert "ended with exit code 7" in last_lines(agent)
        assert "  | rank 3 says its last words" in last_lines(agent)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failed_node_ends_the_job_on_nodes_whose_workers_never_notice(cluster: Cluster, backend: str) -> None:
    script = "apart.py"  # its workers have no connection to each other
    agents = cluster.pair(script, backend=backend)
    assert [agent.wait() for agent in agents] == [9, 9]
    survivor = next(agent for agent in agents if "I go on" in agent.text)
    assert "first failure: rank 1 (node 1" in last_lines(survivor)
    assert cluster.processes() == {}


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
    assert "got SIGTERM" in agent.text
    assert "SIGHUP 1>" in agent.text or "Handlers.SIG_IGN" in agent.text


def test_hang_up_without_nohup_stops_the_job(cluster: Cluster) -> None:
    agent = cluster.run("plain.py", "sleep")
    agent.wait_for("ready")
    os.kill(agent.pid, signal.SIGHUP)
    assert agent.wait() == 129


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_the_workers_and_nothing_is_left(cluster: Cluster, number: signal.Signals) -> None:
    agent = cluster.run("plain.py", "children", nproc=2)
    agent.wait_for("ready(.|\n)*ready")
    what = "agent, keeper, two workers, a child each"  # of which Linux may not show the variables at once
    wait_until(lambda: len(cluster.processes()) == 6, 60, lambda: f"{what}: {cluster.processes()}")
    os.kill(agent.pid, number)
    assert agent.wait() == 128 + number
    cluster.wait_gone()
    assert "Traceback" not in re.sub(r"(?s)Traceback.*?KeyboardInterrupt", "", agent.text)


def test_second_signal_kills_workers_that_do_not_stop(cluster: Cluster) -> None:
    agent = cluster.run("plain.py", "stubborn")
    agent.wait_for("ready")
    os.kill(agent.pid, signal.SIGTERM)
    agent.wait_for(r"have not ended yet: in \d+ s they are killed, by a second signal at once")
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 143
    assert "Unable to shutdown process" not in agent.text, "torch says so when it has waited for half a minute"
    assert cluster.processes() == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_signal_while_waiting_for_other_nodes(cluster: Cluster, backend: str) -> None:
    agent = cluster.run("plain.py", "sleep", backend=backend, nnodes=2, rank=0)
    cluster.wait_listening()
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 143
    assert "Traceback" not in agent.text
    assert cluster.processes() == {}


def test_signal_while_waiting_for_the_host(cluster: Cluster) -> None:
    agent = cluster.run("plain.py", "sleep", backend="c10d", nnodes=2, conf="is_host=false", options=["-v"])
    agent.wait_for("handling signals")
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 143
    assert "error" not in agent.text


@pytest.mark.parametrize("backend", BACKENDS)
def test_host_waits_for_an_agent_that_was_replaced(cluster: Cluster, backend: str) -> None:
    """The agent that has left must not be counted for the one in its place."""
    go_on = cluster.directory / "go-on"
    conf = {"static": "linger=30", "c10d": "linger=30,last_call_timeout=2", "parallel": "last_call_timeout=60"}[backend]

    def start(rank: int) -> Agent:
        given = rank if backend == "static" else None
        nodes = 2 if backend == "static" else "1:2"
        return cluster.run(
            "report.py", *("fail_after", go_on, 0, 7), backend=backend, nnodes=nodes, rank=given, restarts=0, conf=conf
        )

    first = start(0)
    cluster.wait_listening()
    second = start(1)
    for agent in (first, second):
        agent.wait_for("past the barrier of 2")  # from here on its worker does not miss the other
    os.kill(second.pid, signal.SIGTERM)
    assert second.wait() == 143
    again = start(1)
    again.wait_for("past the barrier of 2")
    go_on.touch()
    assert [first.wait(), again.wait()] == [7, 7], first.text + again.text


def test_stderr_stays_a_terminal(cluster: Cluster) -> None:
    reader, writer = pty.openpty()
    with open(writer, "wb") as terminal:
        agent = cluster.start(["rdzv-run", cluster.script("plain.py"), "tty"], stderr=terminal)
        assert agent.wait() == 0
    assert "stderr is a terminal: True" in agent.text
    assert b"to stderr\r\n" in read_all(reader)
    os.close(reader)


def read_all(terminal: int) -> bytes:
    """What was written to the other end, which is closed: it comes in pieces."""
    data = b""
    with suppress(OSError):  # a terminal's way to say that its writers are gone
        while part := os.read(terminal, 65536):
            data += part
    return data


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_that_fails_as_a_consequence_names_the_cause(cluster: Cluster, backend: str) -> None:
    agents = cluster.pair("cascade.py", backend=backend, nproc=2)
    assert [agent.wait() for agent in agents] == [9, 9], agents[0].text + agents[1].text
    for agent in agents:
        assert "first failure: rank 2 (node 1 on " in last_lines(agent)
        assert "ended with exit code 9" in last_lines(agent)
        assert "  | rank 2 says its last words" in last_lines(agent)
    consequence = next(agent for agent in agents if "after it, on this node (0)" in agent.text)
    assert "rank 0: exit code 5" in last_lines(consequence)


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
        ("setsid ./background", 3),
        ("sh -c 'setsid ./background &'", 0),
        ("env -i PATH=$PATH setsid ./background", 0),
    ],
)
def test_what_is_left_in_the_background_is_told_to_end_and_named(cluster: Cluster, how: str, code: int) -> None:
    agent = cluster.start(["rdzv-run", *leaving(cluster, how)], CODE=str(code))
    assert agent.wait() == code, agent.text
    pid = (cluster.directory / "started").read_text().strip()
    (line,) = [line for line in agent.text.splitlines() if f"background (pid {pid})" in line]
    assert "--leave-background" in line
    assert (cluster.directory / "told").exists()
    assert (cluster.directory / "saved").exists() or code, "the agent stays as long as that takes"
    cluster.check_gone()


def test_what_is_in_the_background_hears_of_a_signal_with_the_workers(cluster: Cluster) -> None:
    agent = cluster.start(["rdzv-run", *leaving(cluster, "setsid ./background")], CODE="wait")
    wait_until((cluster.directory / "started").exists, 60, lambda: agent.text)
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 143, agent.text
    assert (cluster.directory / "saved").exists()
    cluster.check_gone()


@pytest.mark.parametrize("by", ["--leave-background", "PET_LEAVE_BACKGROUND", "leave_background"])
def test_what_is_in_the_background_is_left_if_the_user_wants_that(cluster: Cluster, by: str) -> None:
    """With what it starts later, which has the mark of the agent, too."""
    flags = {"--leave-background": [by], "leave_background": ["--rdzv-conf=leave_background=true"]}.get(by, [])
    variables = {by: "1"} if by.startswith("PET_") else {}
    agent = cluster.start(["rdzv-run", *flags, *leaving(cluster, "setsid ./background")], CODE="0", **variables)
    assert agent.wait() == 0, agent.text
    pid = int((cluster.directory / "started").read_text())
    try:
        assert pid in cluster.processes()
        assert not (cluster.directory / "told").exists()
        assert "background" not in agent.text
    finally:
        cluster.kill(pid)
    cluster.wait_gone()


def test_what_is_to_be_left_is_killed_with_an_agent_that_is_killed(cluster: Cluster) -> None:
    command = ["rdzv-run", "--leave-background", *leaving(cluster, "setsid ./background")]
    agent = cluster.start(command, CODE="wait")
    wait_until((cluster.directory / "started").exists, 60, lambda: agent.text)
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    cluster.wait_gone()
    assert not (cluster.directory / "told").exists()


def test_program_that_setsid_starts_is_the_worker(cluster: Cluster) -> None:
    agent = cluster.start(["rdzv-run", "--no-python", "setsid", "sh", "-c", "sleep 1; exit 7"])
    assert agent.wait() == 7, agent.text
