"""Workers are fenced: they end with their agent, none is started during a stop, none acts for a round that is over."""

from __future__ import annotations

import os
import signal

import pytest
from kits.eventually import eventually
from kits.keeper.keeper_kit import alive
from kits.launcher.harness import Agent, Cluster, comm_of, parent_of

from rdzv_plugins.worker import round_holds, wait_until_round_holds


def keeper_of(agent: Agent) -> int | None:
    """The pid of its keeper."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    return next((pid for pid in pids if parent_of(pid) == agent.pid and comm_of(pid) == "rdzv-keeper"), None)


def started_here(agent: Agent) -> list[int]:
    """Those that outlives.py has started, and the keeper."""
    children = [int(pid) for pid in agent.wait_for(r"ready: ([\d ]+)\n")[1].split()]
    assert all(map(alive, children))
    keeper = eventually(lambda: keeper_of(agent), lambda: "no keeper")
    return [*children, keeper]


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
    eventually(lambda: not any(map(alive, started)), lambda: f"left: {[*filter(alive, started)]}")
    assert cluster.processes() == {}
    assert [*temporary.iterdir()] == [foreign]

    # killed together with its keeper: the next one finds what is left, but not what others have
    agent = cluster.run("plain.py", "stubborn", TMPDIR=str(temporary), options=["--redirects=1"])
    # looked for by its log: while Python chooses a directory for temporary files it tries to write one there
    (log,) = eventually(lambda: [*temporary.glob("rdzv-run-*/logs/*/*/0/stdout.log")], lambda: "no log")
    own = log.parents[4]
    eventually(lambda: "ready" in log.read_text(), log.read_text)
    keeper = eventually(lambda: keeper_of(agent), lambda: "no keeper")
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


def test_outside_of_a_launcher_every_round_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RDZV_ROUND_HOLDS", raising=False)
    assert round_holds()
    assert wait_until_round_holds(timeout=0)
    monkeypatch.setenv("RDZV_ROUND_HOLDS", "/proc/1/fd/none,1")  # its agent has gone
    assert not round_holds()
