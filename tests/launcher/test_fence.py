"""Workers are fenced: they end with their agent, none is started during a stop, none acts for a round that is over."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from kits.launcher.harness import Agent, Cluster, wait_until

STARTS, WORKERS = 20, 4


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def keeper_of(agent: Agent) -> int | None:
    """The pid of its keeper, whose command line is that of its agent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == agent.pid and (entry / "comm").read_text() == "rdzv-keeper\n":
                    return int(entry.name)
            except OSError:
                continue
    return None


def started_here(agent: Agent) -> list[int]:
    """Those that outlives.py has started, and the keeper."""
    children = [int(pid) for pid in agent.wait_for(r"ready: ([\d ]+)\n")[1].split()]
    assert all(map(alive, children))
    keeper = wait_until(lambda: keeper_of(agent), 30, lambda: "no keeper")
    return [*children, keeper]


@pytest.mark.parametrize("backend", ["parallel"])
def test_a_signal_while_workers_are_started_leaves_none_behind(cluster: Cluster, backend: str) -> None:
    """At any moment of it, when some of the workers have begun. The agent does not say what is not true."""
    worker = cluster.directory / "worker"
    worker.write_text('#!/bin/sh\n: > "started-$TEST_NUMBER-$LOCAL_RANK"\nexec sleep 600\n')
    worker.chmod(0o755)
    chance = random.Random(8)
    for number in range(STARTS):
        begun = cluster.directory / f"started-{number}-{chance.randrange(WORKERS)}"
        command = ["rdzv-run", "--no-python", f"--nproc-per-node={WORKERS}", worker]
        agent = cluster.start(command, TEST_NUMBER=str(number))
        while not begun.exists() and agent.process.poll() is None:
            time.sleep(0.0005)  # the moment counts
        os.kill(agent.pid, signal.SIGTERM)
        assert agent.wait() == 143, agent.text
        assert cluster.processes() == {}, agent.text
        assert "the workers of this node were stopped" in agent.text
        assert "Traceback" not in agent.text


def test_nothing_outlives_an_agent_that_is_killed(cluster: Cluster) -> None:
    """Whatever it has done to get away. And of its temporary files, only the logs of workers stay."""
    temporary = cluster.directory / "temporary"
    temporary.mkdir()
    foreign = temporary / "rdzv-run-foreign"
    foreign.mkdir()
    agent = cluster.run("outlives.py", "ignores", nproc=2, TMPDIR=str(temporary))
    agent.wait_for("ready(.|\n)*ready")
    started = started_here(agent)
    (own,) = set(temporary.iterdir()) - {foreign}
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    wait_until(lambda: not any(map(alive, started)), 20, lambda: f"left: {[*filter(alive, started)]}")
    assert cluster.processes() == {}
    assert [*temporary.iterdir()] == [foreign]

    # killed together with its keeper: the next one finds what is left, but not what others have
    agent = cluster.run("plain.py", "stubborn", TMPDIR=str(temporary), options=["--redirects=1"])
    # looked for by its log: while Python chooses a directory for temporary files it tries to write one there
    (log,) = wait_until(lambda: [*temporary.glob("rdzv-run-*/logs/*/*/0/stdout.log")], 60, lambda: "no log")
    own = log.parents[4]
    wait_until(lambda: "ready" in log.read_text(), 60, log.read_text)
    keeper = wait_until(lambda: keeper_of(agent), 30, lambda: "no keeper")
    os.kill(agent.pid, signal.SIGSTOP)  # it would start another
    for pid in (keeper, agent.pid, *cluster.processes()):
        cluster.kill(pid)
    agent.wait()
    cluster.wait_gone()
    assert (own / "lock").exists()
    living = cluster.run("plain.py", "sleep", TMPDIR=str(temporary))
    living.wait_for("ready")
    (of_living,) = set(temporary.iterdir()) - {foreign, own}
    assert not (own / "lock").exists()
    assert log.exists(), "it is the user's"
    cluster.run("plain.py", "env", "HOME", TMPDIR=str(temporary)).wait()
    assert set(temporary.iterdir()) == {foreign, own, of_living}
    os.kill(living.pid, signal.SIGTERM)
    assert living.wait() == 143
    assert set(temporary.iterdir()) == {foreign, own}


def test_a_keeper_that_stands_still_does_not_hold_up_its_node(cluster: Cluster) -> None:
    """It hears of the end of a worker; tests/keeper has those that do not even go on when they are told to."""
    agent = cluster.run("plain.py", "sleep", restarts=1)
    agent.wait_for("ready")
    (worker,) = cluster.workers(agent, "plain.py")
    keeper = wait_until(lambda: keeper_of(agent), 30, lambda: "no keeper")
    os.kill(keeper, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    agent.wait_for(r"restart 1 of 1(.|\n)*ready")
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 143, agent.text
    cluster.check_gone()


def test_nothing_outlives_an_agent_that_is_stopped_or_done(cluster: Cluster) -> None:
    """Daemons neither; the keeper itself neither."""
    agent = cluster.run("outlives.py", "ends")
    started = started_here(agent)
    os.kill(agent.pid, signal.SIGTERM)
    agent.wait_for("telling the workers of this node to end: SIGTERM")
    os.kill(agent.pid, signal.SIGTERM)  # one of them takes no notice of the first
    assert agent.wait() == 143
    assert not any(map(alive, started)), [*filter(alive, started)]
    assert cluster.processes() == {}
    assert "the workers of this node were stopped" in agent.text
