"""``rdzv stacks`` and ``--hang-timeout``: real jobs that hang, each rank at a place of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.harness import AgentProcess, Cluster, Said

from rdzv_plugins.errors import JobHung, Preempted
from rdzv_plugins.testing.launched import outputs

Groups = dict[tuple[int, ...], str]
"""By the ranks of each group: its kind, and where it is."""
Ask = Callable[..., Said]


@pytest.fixture
def ask(rdzv: Callable[..., Said]) -> Ask:
    """``rdzv stacks`` with these flags."""
    return lambda *flags: rdzv("stacks", "--timeout=120", *flags)  # nothing takes that long


def data_of(said: Said) -> dict[str, Any]:
    assert said.out, said.err
    return dict(json.loads(said.out))


def groups_of(data: dict[str, Any]) -> Groups:
    return {tuple(each["ranks"]): f"{each['kind']} {each['where']}" for each in data["groups"]}


class Hanging:
    """A job whose ranks stand where they were told to."""

    def __init__(self, ask: Ask, cluster: Cluster, places: str, *, nproc: int, nnodes: int = 2) -> None:
        self.run_id = f"hangs-{uuid.uuid4().hex[:8]}"
        flags = [f"--rdzv-endpoint={cluster.endpoint}", f"--rdzv-id={self.run_id}"]
        self.ask: Ask = lambda *more: ask(*flags, *more)
        job: dict[str, Any] = {"backend": "parallel", "nnodes": nnodes, "nproc": nproc, "conf": "ttl=60"}
        self.agents = [
            cluster.run("stands.py", *places.split(), rank=rank, options=flags[1:], **job) for rank in range(nnodes)
        ]
        for rank in range(nnodes * nproc):
            eventually(lambda r=rank: f"rank {r} stands" in outputs(self.agents), lambda: outputs(self.agents))

    def wait_groups(self, expected: Groups) -> Said:
        """Until the ranks have got from saying so to where they stand."""

        def there() -> Said | None:
            said = self.ask("--json")
            groups = groups_of(data_of(said))
            right = groups.keys() == expected.keys() and all(where in groups[each] for each, where in expected.items())
            return said if right else None

        found: Said = eventually(there, lambda: self.ask("--json"))
        return found


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes a capability away from root")
@pytest.mark.parametrize("flags", [["--worker-stacks"], []], ids=["asked", "not"])
def test_where_no_debugger_may_look_workers_write_their_stacks_if_their_job_asks_for_it(
    ask: Ask, cluster: Cluster, flags: list[str]
) -> None:
    run_id = f"hides-{uuid.uuid4().hex[:8]}"
    job = [f"--rdzv-endpoint={cluster.endpoint}", f"--rdzv-id={run_id}"]
    worker = [cluster.script("stands.py"), "--plain", "--hidden", "0=wait_for_lock"]
    agent = cluster.start(
        ["rdzv-run", "--rdzv-backend=parallel", *job, *flags, *worker],
        before=["setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace"],
    )
    agent.wait_for("rank 0 stands")

    def there() -> Said | None:
        said = ask(*job, "--json")
        return said if not flags or groups_of(data_of(said)).get((0,), "").endswith("in wait_for_lock") else None

    found = eventually(there, lambda: agent.text)
    (group,) = data_of(found)["groups"]
    process = group["workers"][0]["process"]
    assert process["how"] == ("faulthandler" if flags else "")
    # without the flag it is not sent the signal, by which it would end
    assert any("--worker-stacks" in why for why in process["tried"]) == (not flags)
    assert found.code == (0 if flags else 1)


def test_children_are_read_on_demand(ask: Ask, cluster: Cluster) -> None:
    job = Hanging(ask, cluster, "--plain 0=python_child", nproc=1, nnodes=1)
    eventually(lambda: "in_child (" in job.ask("--children").out, lambda: job.ask("--children"))
    assert "in_child (" not in job.ask().out
    other = ask(f"--rdzv-endpoint={cluster.endpoint}", "--rdzv-id=other")
    assert (other.code, repr(job.run_id) in other.err) == (68, True)
    assert ask(f"--rdzv-id=no-such-{uuid.uuid4().hex}").code == 1


PLACES = {
    (0, 5): "waiting in all_reduce, called at stands.py:",
    (1,): "running at stands.py: endless_loop",
    (2,): "waiting in run, called at stands.py: wait_for_child",
    (3,): "waiting in barrier, called at stands.py: skip_collective",
    (4,): "stopped at stands.py: stop_here",
}


@pytest.mark.thorough
def test_each_rank_is_named_with_its_place(ask: Ask, cluster: Cluster) -> None:
    """Six ranks of two nodes with gloo: as data, as text, on their machine without the endpoint, with native frames.

    At last the agent of a node is stopped: of that node nothing is known, and it is named.
    """
    places = "1=endless_loop 2=wait_for_child 3=skip_collective 4=stop_here"
    job = Hanging(ask, cluster, places, nproc=3)
    found = job.wait_groups({ranks: where.partition(" stands.py:")[0] for ranks, where in PLACES.items()})
    data = data_of(found)
    assert found.code == 0, data["silent"]
    for ranks, where in PLACES.items():
        assert where.rpartition(" ")[2].removeprefix("stands.py:") in groups_of(data)[ranks]
    assert data["groups"][0]["kind"] == "stopped"
    assert data["groups"][-1]["ranks"] == [0, 5]
    assert {each["node_rank"] for each in data["nodes"]} == {0, 1}

    first, _, rest = job.ask().out.partition("\n")
    assert first.startswith("6 workers on 2 nodes: rank 4 (node 1 on ")
    assert ") is stopped at stands.py:" in first
    assert rest.count("\n    all_reduce (") == 1
    assert "kill -CONT " in rest
    assert ": sleep 600" in rest  # the child for which rank 2 waits

    (run,) = data_of(ask(f"--rdzv-id={job.run_id}", "--json"))["runs"]
    assert (run["run"], run["silent"]) == (job.run_id, [])
    assert groups_of(run).keys() == PLACES.keys()

    groups = {tuple(each["ranks"]): each for each in data_of(job.ask("--json", "--native"))["groups"]}
    waiting = [each["process"]["native"] for each in groups[(0, 5)]["workers"]]
    named = [frame["function"] for frames in waiting for frame in frames]
    assert any("c10d" in name or "cond" in name for name in named), waiting
    assert "all_reduce" in named
    assert [len(frames) > 0 for frames in waiting].count(True) <= 2  # one of each node

    stopped = next(agent for agent in job.agents if not cluster.listens(agent))  # the other one serves the endpoint
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        there, here = job.ask("--timeout=15"), ask(f"--rdzv-id={job.run_id}")
        assert (there.code, f"(pid {stopped.pid})" in there.out) == (1, True)
        assert (here.code, f"kill -CONT {stopped.pid}" in here.out) == (1, True)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)


def stored(agent: AgentProcess) -> str:
    """The text of the file that it names."""
    return Path(agent.wait_for(r"their stacks are in (\S+\.log): ")[1]).read_text()


@pytest.mark.thorough
def test_where_workers_are_is_stored_before_they_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    """After a signal, and of one that outlives a notice."""
    logs = f"--log-dir={tmp_path / 'logs'}"
    options = ["--shutdown-timeout=20", logs]
    signalled = cluster.run("stands.py", "--plain", "1=ignore_sigterm", nproc=2, options=options)
    options = ["--shutdown-timeout=600", "--preempt-grace=20", logs]
    warned = cluster.run("stands.py", "--plain", "0=ignore_sigterm", options=options)
    for agent in (signalled, warned):
        agent.wait_for("rank 0 stands")
    signalled.wait_for("rank 1 stands")
    os.kill(signalled.pid, signal.SIGTERM)
    os.kill(warned.pid, signal.SIGTERM)
    warned.wait_for("lose node 0")
    os.kill(warned.pid, signal.SIGTERM)  # it is not to wait until there is time left to save
    assert signalled.wait() == 143, signalled.text
    assert "in ignore_sigterm" in stored(warned)
    assert "in ignore_sigterm" in stored(signalled)
    assert "rank 0 (node 0" in stored(signalled)
    assert warned.wait() == Preempted.exit_code, warned.text


@pytest.mark.thorough
def test_who_waits_too_long_in_the_exit_barrier_stores_where_the_others_are(cluster: Cluster, tmp_path: Path) -> None:
    options = ["--exit-barrier-timeout=12", f"--log-dir={tmp_path / 'logs'}"]
    job: dict[str, Any] = {"backend": "parallel", "nnodes": 2, "options": options}
    agents = [cluster.run("stands.py", "--plain", "0=end", "1=wait_for_lock", rank=rank, **job) for rank in (0, 1)]
    assert "in wait_for_lock" in stored(agents[0])


HANGS = {
    1: (1, "stop_here", "is stopped at stands.py:"),
    2: (2, "endless_loop", "runs at stands.py:"),
    3: (0, "wait_for_lock", "is at stands.py:"),
    4: (1, "wait_for_child", "is in run, called at stands.py:"),
    5: (2, "skip_collective", "is in barrier, called at stands.py:"),
}
"""By round: the rank that is different, what it does, and what is said of it."""


@pytest.mark.thorough
def test_each_hang_is_named_and_the_job_restarts_until_none_is_left(cluster: Cluster, tmp_path: Path) -> None:
    """On every screen the summary of the last one is the last that is said, and every node has stored its stacks."""
    places = [f"{rank}@{round_}={place}" for round_, (rank, place, _) in HANGS.items()]
    options = ["--shutdown-timeout=2", "--hang-timeout=2", "--preload=quick_torch,torch.distributed"]
    agents = [
        cluster.run(
            "stands.py",
            *places,
            backend="parallel",
            nnodes=2,
            nproc=nproc,
            restarts=9,
            conf="job_restarts=4,restart_delay=0,linger=30",
            options=[*options, f"--log-dir={tmp_path / str(node)}"],
            PYTHONPATH=str(cluster.script("")),
        )
        for node, nproc in enumerate((1, 2))
    ]
    assert [agent.wait(240) for agent in agents] == [JobHung.exit_code] * 2, outputs(agents)
    who = r"(\d\d:\d\d:\d\d) rdzv-run error: rank (\d) \(node \d on .*?, pid (\d+)\)"
    error = rf"{who} (.*), and no worker of the job has made"
    found = sorted(re.findall(error, outputs(agents)), key=lambda each: each[0])  # either node may say it
    named = {pid: (rank, said) for _, rank, pid, said in found}.values()
    assert [(int(rank), said[: len(HANGS[each][2])]) for each, (rank, said) in enumerate(named, 1)] == [
        (rank, said) for rank, _, said in HANGS.values()
    ]
    for node, agent in enumerate(agents):
        assert "rank 2 (node " in agent.text.rpartition("rdzv-run: the job failed: it hung.\n")[2]
        texts = [path.read_text() for path in (tmp_path / str(node)).rglob("stacks-*.log")]
        assert sum("hang" in text.partition("\n")[0] for text in texts) >= len(HANGS)
        assert any("in stop_here" in text for text in texts)


@pytest.mark.thorough
def test_what_takes_longer_than_the_time_out_is_no_hang(cluster: Cluster) -> None:
    agents = cluster.pair("takes_long.py", 5, backend="parallel", conf="hang_timeout=3.5,linger=30")
    assert [agent.wait(240) for agent in agents] == [0, 0], outputs(agents)
