"""The timeline of real jobs: what a killed worker and a killed node have cost, and disks that take nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Agent, Cluster, kill, plug_in
from kits.unit.timelines import lines

from rdzv_launcher.run.timeline.record import INTERRUPTING, Record, parse
from rdzv_launcher.tools.cli import main


def merged(capsys: pytest.CaptureFixture[str], directory: Path) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["timeline", "--json", str(directory)]) == 0
    return dict(json.loads(capsys.readouterr().out))


def records(directory: Path) -> list[Record]:
    return sorted((parse(line.encode()) for line in lines(directory)), key=lambda each: each.mono)


def reports(agents: list[Agent], number: int) -> list[dict[str, Any]]:
    """Those of the workers of all agents, when there are so many."""

    def those() -> list[dict[str, Any]]:
        return [each for agent in agents for each in agent.reports()]

    eventually(lambda: len(those()) >= number, lambda: "\n".join(each.text for each in agents))
    return those()


def test_a_killed_worker_and_a_killed_node(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """What is told of the two interruptions is what this test has done, at the time at which it did."""
    directory, stop = cluster.directory / "not" / "there yet", cluster.directory / "stop"
    start: dict[str, Any] = {"backend": "parallel", "nnodes": "1:2", "restarts": 1, "conf": "allow_same_host=true"}
    secret = {"MY_SECRET": "hunter2"}
    first = cluster.run("beats.py", stop, "hunter2", **start, options=[f"--timeline={directory}"], **secret)
    cluster.wait_listening()
    second = cluster.run("beats.py", stop, "hunter2", **start, RDZV_TIMELINE=str(directory), **secret)
    both = [first, second]
    reports(both, 2)
    (victim,) = cluster.workers(second, "beats.py")
    worker_killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert {each["WORLD_SIZE"] for each in reports(both, 4)} == {"2"}
    again = time.monotonic()
    # they write on a thread of their own

    def begun() -> int:
        whole = [parse(line.encode()) for line in lines(directory) if line.endswith("}")]
        return sum((each.event, each.round) == ("started", 2) for each in whole)

    eventually(lambda: begun() == 2, lambda: second.text)
    node_killed = time.monotonic()
    kill(second.pid)
    assert reports(both, 5)[2]["WORLD_SIZE"] == "1", "the survivor's third round"
    alone = time.monotonic()
    stop.touch()
    assert first.wait() == 0
    told = records(directory)

    data = merged(capsys, directory)
    assert [each["kind"] for each in data["interruptions"]] == ["start", "restart", "restart"]
    assert data["left_out"] == []
    _, worker, node = data["interruptions"]
    assert f"pid {victim})" in worker["cause"]
    assert f"pid {second.pid})" in node["cause"]
    assert [each["phase"] for each in worker["phases"]] == [
        *("noticing", "stopping", "deciding", "meeting", "connecting", "completing")
    ]
    for begun, ended, numbers, each in ((worker_killed, again, (1, 2), worker), (node_killed, alone, (2, 3), node)):
        assert (each["after"], each["until"]) == numbers
        signs = [r.mono for r in told if r.event in INTERRUPTING and begun < r.mono < ended]
        complete = max(r.mono for r in told if r.event == "complete" and r.round == each["until"])
        without = complete - min(signs)
        assert begun < min(signs) < complete < ended
        assert sum(phase["seconds"] for phase in each["phases"]) >= 0.95 * without
        assert each["seconds"] == pytest.approx(without, abs=1e-4)
        assert each["first_line_after"] is not None
    asked = "said by the one whose worker was killed"
    assert {r.facts["pid"] for r in told if r.event == "opened" and r.agent in agents_with(told, "asked")} == {
        second.pid
    }, asked
    assert agents_with(told, "ended") == agents_with(told, "lost"), "the killed one has no end, the survivor says so"
    assert "hunter2" not in "".join(lines(directory)), "neither arguments nor variables are written down"


def agents_with(told: list[Record], event: str) -> set[str]:
    return {each.agent for each in told if each.event == event}


COUNTS = """
from dataclasses import dataclass
from typing import Any
from rdzv_plugins import Backend, hookimpl

@dataclass(frozen=True)
class Info:
    rank: int = 0
    world_size: int = 1
    store: Any = None
    bootstrap_store_info: Any = None

class Handler:
    use_agent_store = False

    def __init__(self, request):
        self._request = request

    def get_backend(self):
        return "counts"

    def next_rendezvous(self):
        return Info()

    def num_nodes_waiting(self):
        return 0

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def get_run_id(self):
        return self._request.run_id

    def shutdown(self):
        return True

@hookimpl
def rdzv_register_backends():
    return [Backend(name="counts", summary="Tells nothing.", capabilities=frozenset(), create=Handler)]
"""


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["c10d", "counts"])
def test_every_backend_has_one(cluster: Cluster, capsys: pytest.CaptureFixture[str], backend: str) -> None:
    """Those of strangers, too: what they do not tell is counted here."""
    env = {}
    if backend == "counts":
        site = plug_in(cluster.directory, "counts", COUNTS)
        env = {"PYTHONPATH": site, "TORCH_ELASTIC_WORKER_IDENTICAL": "1"}  # it has no store
    options: dict[str, Any] = {"rank": 0, "restarts": 1, "conf": f"timeline={cluster.directory}/t"}
    agent = cluster.run("plain.py", "fail", 3, backend=backend, **options, **env)
    assert agent.wait() == 3, agent.text
    data = merged(capsys, cluster.directory / "t")
    assert [each["round"] for each in data["rounds"]] == [1, 2]
    assert [each["kind"] for each in data["interruptions"]] == ["start", "restart", "end"]
    told = records(cluster.directory / "t")
    assert {each.facts["numbered"] for each in told if each.event == "complete"} == {backend != "counts"}


@pytest.mark.thorough
def test_first_lines_that_go_to_files_are_told(cluster: Cluster) -> None:
    """Of each round once; that the first worker is killed after its line was told leaves no doubt which it was."""
    directory, stop = cluster.directory / "t", cluster.directory / "stop"
    options = [f"--timeline={directory}", "--redirects=3", f"--log-dir={cluster.directory / 'logs'}"]
    agent = cluster.run("beats.py", stop, backend="static", rank=0, restarts=1, options=options)

    def told() -> list[Record]:
        return [each for each in records(directory) if each.event == "line"] if directory.exists() else []

    eventually(told, lambda: agent.text)
    (victim,) = cluster.workers(agent, "beats.py")
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(told()) == 2, lambda: agent.text)
    stop.touch()
    assert agent.wait() == 0, agent.text
    assert [each.round for each in told()] == [1, 2]
    assert f"pid {victim})" in told()[0].cause


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of one's own needs root")
def test_a_full_disk_is_a_sentence_and_not_the_end(cluster: Cluster) -> None:
    disk = cluster.directory / "disk"
    disk.mkdir()
    shell = f'mount -t tmpfs -o size=4k tmpfs {disk} && head --bytes=1M /dev/zero > {disk}/all 2>/dev/null; exec "$@"'
    agent = cluster.start(
        ["rdzv-run", f"--timeline={disk}", cluster.script("plain.py"), "fail", 3],
        before=["/usr/bin/unshare", "--mount", "/bin/sh", "-c", shell, "sh"],
    )
    assert agent.wait() == 3, agent.text
    assert agent.text.count(f"{disk}") >= 1
