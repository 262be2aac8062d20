"""A node that stands still, or loses its session: none of its workers acts once others may have begun a new round."""

from __future__ import annotations

import os
import signal

from kits.eventually import eventually
from kits.keeper.keeper_kit import state
from kits.launcher.elastic_kit import BRIEF, Job, Meeting, in_one_round, outputs, parallel_only
from kits.launcher.harness import Agent


def acts(meeting: Meeting) -> list[tuple[float, int, int, bool]]:
    """What acts.py has done: when, pid, the agent's pid, whether the round held."""
    path = meeting.directory / "acts"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(float(w), int(pid), int(agent), holds == "1") for w, pid, agent, holds in map(str.split, lines)]


def worlds(agent: Agent) -> int:
    return len(agent.reports())


@parallel_only  # what pauses workers is the same over etcd
def test_a_node_that_stood_still_does_not_act_for_a_round_that_is_over(meeting: Meeting) -> None:
    """Its workers are processes of their own, which go on while it stands still: for as long as its session lives."""
    served = meeting.serve()
    job = Job(meeting, "1:2", script="acts.py", conf=f"{BRIEF},last_call_timeout=80")
    frozen, other = job.node(0), job.node(1)
    first = in_one_round(frozen, other)
    (worker,) = job.workers(frozen)
    first_act(meeting, worker)
    before = worlds(other)
    assert any(holds for _, pid, _, holds in acts(meeting) if pid == worker), "its round holds"
    os.kill(frozen.pid, signal.SIGSTOP)
    eventually(lambda: worlds(other) > before, lambda: f"no second round:\n{outputs([other])}")
    second = other.reports()[before]
    begun = first_act(meeting, second["PID"])
    eventually(lambda: state(worker) == "T", lambda: "it is not paused: its agent can do nothing")
    os.kill(frozen.pid, signal.SIGCONT)
    in_one_round(frozen, other, after=first)
    job.finish(frozen, other)
    done = acts(meeting)
    late = [when - begun for when, pid, _, _ in done if pid == worker and when >= begun]
    assert not late, f"it acted {late[-1]} s after the new round had begun\n{outputs([frozen, other])}"
    assert served is None or served.process.poll() is None


def first_act(meeting: Meeting, pid: int) -> float:
    """When that worker acted first."""
    return eventually(lambda: next((w for w, p, *_ in acts(meeting) if p == pid), 0.0), lambda: "it does not act")
