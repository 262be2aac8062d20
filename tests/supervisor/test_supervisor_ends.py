"""Nothing stays behind, and nobody waits for a process that stands still."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from typing import Any
from unittest.mock import ANY

import pytest
from kits.eventually import eventually
from kits.supervisor.supervisor_kit import FAMILY, Agent, Agents, alive, executable, family, freeze, pids_in, state

from rdzv_launcher.run.supervisor import descendants
from rdzv_launcher.run.supervisor.descendants import Process

WORKERS = 2
FAMILIES = f"""
env["PIDS"] = "pids"
pids = supervisor.start([Start(rank, ("./family",), env, "out", "err") for rank in range({WORKERS})])
say(supervisor.pid, *pids.values())
"""


def started(
    agents: Agents, source: str, supervisor_made: str = "supervisor = Supervisor()"
) -> tuple[Agent, int, list[int]]:
    """An agent with two families, the pid of its supervisor, and those of all that was started."""
    family(agents.directory)
    noted = agents.directory / "pids"
    noted.unlink(missing_ok=True)
    agent = agents.start(supervisor_made + FAMILIES + source)
    supervisor, *workers = agent.read()
    pids = pids_in(noted, FAMILY * WORKERS)
    agents.note(pids)
    assert {*workers} <= {*pids}
    assert all(map(alive, pids))
    return agent, supervisor, pids


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_nothing_outlives_an_agent_that_is_killed(agents: Agents, stopped: bool) -> None:
    """Nor if its supervisor has been stopped: it goes on."""
    agent, supervisor, pids = started(agents, "signal.pause()")
    if stopped:
        freeze(supervisor)
    os.kill(agent.pid, signal.SIGKILL)
    agents.wait_gone([*pids, supervisor])


@pytest.mark.thorough
def test_an_agent_is_watched_though_its_copy_holds_the_channel(agents: Agents) -> None:
    """A process that the agent has forked, as multiprocessing does, and that goes on."""
    source = "if (copy := os.fork()) == 0: signal.pause()\nsay(copy)\nsignal.pause()"
    agent, supervisor, pids = started(agents, source)
    (copy,) = agent.read()
    os.kill(agent.pid, signal.SIGKILL)
    eventually(lambda: not any(map(alive, [*pids, supervisor])), lambda: f"left: {[*filter(alive, pids)]}")
    assert alive(copy), "it is no worker's"


def test_a_supervisor_that_is_killed_takes_its_workers_along_and_the_agent_says_so(agents: Agents) -> None:
    source = """
import subprocess, threading
from rdzv_launcher.run.supervisor import supervisor as module
module._SEND_S = 60.0  # it is waited for as long as it takes that all have gone
mine = subprocess.Popen(["sleep", "1000"], start_new_session=True)
supervisor.start([])  # its children are looked at here
say("ready")
sys.stdin.readline()
for event in supervisor.events(60):
    say(type(event).__name__, event.reason)
try:
    supervisor.start([Start(0, ("true",), env)])
except RdzvError as error:
    say(type(error).__name__, error.remedy)
say(supervisor.close(), mine.poll())
threading.Thread(target=sys.stdin.readline, daemon=True).start()  # no fork any more
supervisor = Supervisor()
supervisor.start([Start(0, ("sh", "-c", "exit 7"), env)])
hear(supervisor, 1)
say(supervisor.close(), mine.poll())
mine.kill()
mine.wait()
"""
    agent, supervisor, pids = started(agents, source)
    assert agent.read() == ["ready"]
    os.kill(supervisor, signal.SIGKILL)
    agent.go_on()
    name, reason = agent.read()
    assert name == "Lost"
    assert f"pid {supervisor}) was ended by SIGKILL" in reason
    assert not any(map(alive, pids)), "the agent speaks when they have gone"
    name, remedy = agent.read()
    assert (name, "out-of-memory" in remedy) == ("SupervisorLost", True)
    assert agent.rest() == [
        [[], None],
        ["WorkerEnded", {"generation": 0, "local_rank": 0, "exit_code": 7}, ANY],
        [[], None],
    ]
    agents.wait_gone(pids)


@pytest.mark.parametrize("kind", ["fresh", pytest.param("preloaded", marks=pytest.mark.thorough)])
def test_workers_end_with_their_supervisor_though_the_agent_stands_still(agents: Agents, kind: str) -> None:
    (agents.directory / "script.py").write_text("import time\ntime.sleep(1000)\n")
    source = f"""
command = ({sys.executable!r}, "-u", "script.py")
supervisor = Supervisor(Preload(("json",), command, env) if {kind!r} == "preloaded" else None)
pids = supervisor.start([Start(rank, command, env, "out", "err") for rank in range(2)])
say(supervisor.pid, *pids.values())
signal.pause()
"""
    agent = agents.start(source)
    assert kind == "fresh" or agent.read()[0] == "Preloaded"
    supervisor, *workers = agent.read()
    freeze(agent.pid)
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: not any(map(alive, workers)), lambda: "they live")


def test_ends_come_in_the_order_in_which_workers_ended(agents: Agents) -> None:
    """Even if the supervisor learns of all of them at once."""
    order = [3, 0, 7, 1, 6, 2, 5, 4]
    for rank in order:
        os.mkfifo(agents.directory / f"fifo-{rank}")
    source = f"""
supervisor = Supervisor()
pids = supervisor.start([Start(rank, ("sh", "-c", f"read x < fifo-{{rank}}; exit {{rank}}"), env) for rank in range(8)])
say(supervisor.pid, *[pids[rank] for rank in {order}])
hear(supervisor, 8)
supervisor.close()
"""
    agent = agents.start(source)
    supervisor, *pids = agent.read()
    freeze(supervisor)
    for rank, pid in zip(order, pids, strict=True):
        (agents.directory / f"fifo-{rank}").write_text("\n")
        eventually(lambda pid=pid: state(pid) == "Z", lambda pid=pid: f"{pid} does not end")
    os.kill(supervisor, signal.SIGCONT)
    ended = [said[1] for said in agent.rest()]
    assert [(each["local_rank"], each["exit_code"]) for each in ended] == [(rank, rank) for rank in order]


def test_leftovers_of_a_round_and_daemons(agents: Agents) -> None:
    """What is in a worker's session after its end is the round's; what has left it is ended at the end."""
    executable(
        agents.directory / "leaves",
        '#!/bin/sh\nsleep 1000 &\necho $! >> "$PIDS"\n'
        "setsid sh -c 'echo $$ >> \"$PIDS\"; exec sleep 1000' &\n"  # it says so when it has left the session
        'until [ "$(wc -l < "$PIDS")" -eq 2 ]; do sleep 0.01; done\n',
    )
    source = """
supervisor = Supervisor()
supervisor.start([Start(0, ("./leaves",), env | {"PIDS": "pids"})])
hear(supervisor, 1)
say(supervisor.leftovers(timeout=60), sorted(supervisor.leftovers(daemons=True, timeout=60)))
say(supervisor.signal_left(signal.SIGTERM, timeout=60))
sys.stdin.readline()
say(supervisor.leftovers(timeout=60), supervisor.leftovers(daemons=True, timeout=60))
say(supervisor.kill_all(timeout=60), supervisor.leftovers(daemons=True, timeout=60))
supervisor.start([Start(0, ("sleep", "1000"), env)])
supervisor.signal(signal.SIGTERM)
hear(supervisor, 1)
say(supervisor.close())
"""
    agent = agents.start(source)
    assert agent.read()[0] == "WorkerEnded"
    child, daemon = pids_in(agents.directory / "pids", 2)
    assert agent.read() == [[child], sorted([child, daemon])]
    assert agent.read() == [[child]]
    eventually(lambda: not alive(child), lambda: "it lives")
    agent.go_on()
    assert agent.rest() == [
        [[], [daemon]],
        [[], []],
        ["WorkerEnded", {"generation": 0, "local_rank": 0, "exit_code": -15}, ANY],
        [[]],
    ]
    agents.wait_gone([daemon])


@pytest.mark.thorough
def test_signals_to_the_supervisor_are_none_of_its_business(agents: Agents) -> None:
    agent, supervisor, pids = started(
        agents, "sys.stdin.readline()\nsay(supervisor.leftovers(daemons=True, timeout=60))"
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(supervisor, number)
    agent.go_on()
    ((left,),) = agent.rest()
    assert {*pids} <= {*left}
    agents.wait_gone(pids)


BY_LISTS = "processes.all_pids = None"
"""Who looks at all processes meets an error, which ends the supervisor."""
BY_ASKING = "processes.LISTED, processes._listed = False, None"


@pytest.mark.parametrize(
    "how", [BY_LISTS, pytest.param(BY_ASKING, marks=pytest.mark.thorough)], ids=["lists", "asking"]
)
def test_a_supervisor_finds_all_that_a_worker_has_started(agents: Agents, how: str) -> None:
    """By the kernel's lists of children, and where it has none by asking everybody."""
    source = """
sys.stdin.readline()
say(sorted(supervisor.leftovers(timeout=60)), sorted(supervisor.leftovers(daemons=True, timeout=60)))
say(supervisor.close())
"""
    made = f"from rdzv_plugins.system import processes\n{how}\nsupervisor = Supervisor()"
    agent, _, pids = started(agents, source, made)
    agent.go_on()
    in_session, all_of_it = agent.read()
    assert set(in_session) < set(all_of_it)
    assert set(pids) <= set(all_of_it)
    assert len(set(in_session) & set(pids)) >= WORKERS
    assert agent.rest() == [[[]]]
    agents.wait_gone(pids)


def process(pid: int, parent: int, started: str = "1", lives: bool = True) -> Process:
    return Process(pid, parent, pid, started, lives)


@pytest.mark.parametrize(
    ("lists", "seen", "spared", "found"),
    [
        # 11 was a child of 10 when the list was read, and 12 ended while its children were looked at
        (
            {1: [10, 12], 10: [11], 12: [13], 13: [], 11: []},
            [(1, 0), (10, 1), (11, 77), (12, 1), (12, 77, "2"), (13, 12)],
            [],
            [10, 12],
        ),
        # what is spared and what has ended is left out, but not what is below
        ({1: [10, 12], 10: [11], 11: [], 12: []}, [(1, 0), (10, 1), (11, 10), (12, 1, "1", False)], [10], [11]),
    ],
)
def test_who_is_a_descendant(
    monkeypatch: pytest.MonkeyPatch,
    lists: dict[int, list[int]],
    seen: list[tuple[Any, ...]],
    spared: list[int],
    found: list[int],
) -> None:
    """A number may be somebody else's by the time that it is looked at."""
    looks: dict[int, list[Process]] = defaultdict(list)
    for each in seen:
        looks[each[0]].append(process(*each))
    monkeypatch.setattr(descendants, "children_now", lambda: lists.__getitem__)
    monkeypatch.setattr(descendants, "look", lambda pid: looks[pid].pop(0) if len(looks[pid]) > 1 else looks[pid][0])
    assert sorted(each.pid for each in descendants.descendants([1], spared=spared)) == found
