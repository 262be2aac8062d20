"""Workers are fenced: they end with their agent, none is started during a stop, none acts for a round that is over."""

from __future__ import annotations

import os
import signal

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, in_one_round
from kits.launcher.harness import AgentProcess, Cluster, comm_of, parent_of
from kits.supervisor.supervisor_kit import alive, state

from rdzv_plugins.testing.launched import outputs
from rdzv_plugins.worker import round_holds, wait_until_round_holds


def supervisor_of(agent: AgentProcess) -> int:

    def found() -> int | None:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
        return next((pid for pid in pids if parent_of(pid) == agent.pid and comm_of(pid) == "rdzv-supervisor"), None)

    return int(eventually(found, lambda: "no supervisor"))


def test_nothing_outlives_an_agent_that_is_killed(cluster: Cluster) -> None:
    """Whatever it has done to get away. And of its temporary files, only the logs of workers stay."""
    temporary = cluster.directory / "temporary"
    temporary.mkdir()
    foreign = temporary / "rdzv-run-foreign"
    foreign.mkdir()
    agent = cluster.run("outlives.py", "ignores", nproc=2, TMPDIR=str(temporary))
    agent.wait_for("ready(.|\n)*ready")
    started = [int(pid) for pid in agent.wait_for(r"ready: ([\d ]+)\n")[1].split()]
    assert all(map(alive, started))
    started.append(supervisor_of(agent))
    (own,) = set(temporary.iterdir()) - {foreign}
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    eventually(lambda: not any(map(alive, started)), lambda: f"left: {[*filter(alive, started)]}")
    assert cluster.processes() == {}
    assert [*temporary.iterdir()] == [foreign]

    # killed together with its supervisor: the next one finds what is left, but not what others have
    agent = cluster.run("plain.py", "stubborn", TMPDIR=str(temporary), options=["--redirects=1"])
    # looked for by its log: while Python chooses a directory for temporary files it tries to write one there
    (log,) = eventually(lambda: [*temporary.glob("rdzv-run-*/logs/*/*/0/stdout.log")], lambda: "no log")
    own = log.parents[4]
    eventually(lambda: "ready" in log.read_text(), log.read_text)
    supervisor = supervisor_of(agent)
    os.kill(agent.pid, signal.SIGSTOP)  # it would start another
    for pid in (supervisor, agent.pid, *cluster.processes()):
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


def test_a_node_that_stood_still_does_not_act_for_a_round_that_is_over(meeting: Meeting) -> None:
    """Its workers are processes of their own, which go on while it stands still: for as long as its session lives."""

    def acts() -> list[tuple[float, int, bool]]:
        """What acts.py has done: when, pid, whether the round held."""
        path = meeting.directory / "acts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(when), int(pid), holds == "1") for when, pid, holds in map(str.split, lines)]

    def first_act(of: int) -> float:
        return float(eventually(lambda: next((when for when, pid, _ in acts() if pid == of), 0), lambda: "none"))

    served = meeting.serve()
    job = Job(meeting, "1:2", script="acts.py", conf="ttl=1,last_call_timeout=80")
    frozen, other = job.node(0), job.node(1)
    first = in_one_round(frozen, other)
    (worker,) = job.workers(frozen)
    first_act(worker)
    before = len(other.reports())
    assert any(holds for _, pid, holds in acts() if pid == worker), "its round holds"
    os.kill(frozen.pid, signal.SIGSTOP)
    eventually(lambda: len(other.reports()) > before, lambda: f"no second round:\n{outputs([other])}")
    begun = first_act(other.reports()[before]["PID"])
    eventually(lambda: state(worker) == "T", lambda: "it is not paused: its agent can do nothing")
    os.kill(frozen.pid, signal.SIGCONT)
    in_one_round(frozen, other, after=first)
    job.finish(frozen, other)
    late = [when - begun for when, pid, _ in acts() if pid == worker and when >= begun]
    assert not late, f"it acted {late[-1]} s after the new round had begun\n{outputs([frozen, other])}"
    assert served.process.poll() is None
