"""``elastic_launch``: from this process, which loses nothing by a call, and in scripts of their own, beside torch's."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from kits import KITS, TESTS
from kits.eventually import eventually
from kits.launcher import called
from kits.launcher.harness import Cluster

from rdzv_launcher import (
    AgentLost,
    LaunchConfig,
    WorkersFailed,
    WorkerTraceback,
    elastic_launch,
)
from rdzv_plugins.errors import UsageError
from rdzv_plugins.testing.launched import AgentProcess, cold, outputs

FORKSERVER = pytest.param("forkserver", marks=pytest.mark.thorough)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, so that those that are left can be seen."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return place


def alone(nproc: int = 2, **others: Any) -> LaunchConfig:
    """One node."""
    return LaunchConfig(1, 1, nproc, **{"max_restarts": 0, "shutdown_timeout": 5} | others)


@pytest.mark.parametrize("method", ["spawn", "fork", FORKSERVER])
def test_results_by_rank(method: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MINE", "yes")
    results = elastic_launch(alone(start_method=method), called.reports)(3, "a ${local_rank}", key=[4])
    assert list(results) == [0, 1]
    assert len({each["pid"] for each in results.values()} | {os.getpid()}) == 3
    for rank, found in results.items():
        del found["pid"]
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        assert found == {
            "arguments": (3, f"a {rank}"),
            "keywords": {"key": [4]},
            "parent": "rdzv-supervisor",
            "session": True,
            "cwd": os.getcwd(),
            "process": f"worker-{rank}",
            "threads": [True],
            "signals": [True, True, True],
            "supervisor": False,
            "environ": own | {"WORLD_SIZE": "2", "ROLE_NAME": "default_role", "MINE": "yes"},
        }
    assert capfd.readouterr().err == ""  # of a fork server, for one, that it could not be


@pytest.mark.thorough
def test_worker_that_is_done_waits_for_the_others(cluster: Cluster) -> None:
    """Else it would break the connections of a process group that is left open. As torch's do with --run-path."""
    (cluster.directory / "called").mkdir()
    assert elastic_launch(alone(), called.returns_first)(str(cluster.directory / "called")) == {0: True, 1: True}
    agent = cluster.run("returns_first.py", ".", nproc=3, options=["--run-path"])
    assert agent.wait() == 0, agent.text


@pytest.mark.thorough
def test_forked_workers_have_what_is_in_this_process() -> None:
    """A closure, a lambda, an open descriptor, and what was set before the call; other threads do not matter."""
    numbers = [1]
    ours, theirs = os.pipe()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        numbers.append(2)
        results = elastic_launch(alone(start_method="fork"), lambda more: (numbers + more, os.write(theirs, b"x")))([3])
        assert results == {0: ([1, 2, 3], 1), 1: ([1, 2, 3], 1)}
        assert os.read(ours, 10) == b"xx"
    finally:
        stop.set()
        thread.join()
        os.close(ours)
        os.close(theirs)


def test_exception_of_the_first_failure(temporary: Path) -> None:
    """As torch's is: what code around ``ChildFailedError`` looks at is there."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(start_method="fork"), called.raises)("on purpose", rank=1)
    error: Any = caught.value
    assert isinstance(error, WorkersFailed)
    rank, failure = error.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode, failure.host) == (1, 1, 1, os.uname().nodename)
    assert failure.message["message"] == "ValueError: on purpose"
    assert "in raises" in failure.message["extraInfo"]["py_callstack"]
    assert list(error.failures) == [1]
    assert (error.name, error.exit_code) == ("raises", 1)
    assert repr(error.__cause__) == repr(ValueError("on purpose"))
    assert isinstance(error.__cause__.__cause__, WorkerTraceback)
    assert "in raises\n" in str(error.__cause__.__cause__)
    # for a caller that is decorated with torch's record, which copies it
    assert json.loads(Path(failure.error_file).read_text())["message"]["message"] == "ValueError: on purpose"
    del caught, error, failure
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_restart_runs_the_function_again() -> None:
    config = alone(max_restarts=1, start_method="fork")
    assert elastic_launch(config, called.fails_at_first)() == {0: "1", 1: "1"}


def test_program(capfd: pytest.CaptureFixture[str]) -> None:
    assert elastic_launch(alone(), "echo")("rank", "${local_rank}") == {}
    assert sorted(capfd.readouterr().out.splitlines()) == ["rank 0", "rank 1"]


@pytest.mark.thorough
def test_worker_or_agent_that_ends_before_it_returns() -> None:
    for how, method, code, signal_name in (("killed", "spawn", -9, "SIGKILL"), ("exit", "fork", 3, "<N/A>")):
        with pytest.raises(WorkersFailed) as caught:
            elastic_launch(alone(1, start_method=method), called.ends)(how)
        (failure,) = caught.value.failures.values()
        assert (failure.exitcode, failure.signal_name(), failure.error_file) == (code, signal_name, "<N/A>")
    with pytest.raises(AgentLost):  # a process of its own, which an out-of-memory killer may choose
        elastic_launch(alone(1, start_method="fork"), called.kills_the_agent)()


MISTAKES: list[tuple[dict[str, Any], Any, dict[str, Any], str]] = [
    ({}, lambda: 1, {}, "<lambda>"),
    ({}, called.returns, {"value": threading.Lock()}, "returns"),
    ({}, None, {}, "None"),
    ({}, "echo", {"key": 1}, "key"),
    ({"max_restarts": "3"}, called.says, {}, "max_restarts"),
    ({"start_method": "thread"}, called.says, {}, "start_method"),
    ({"rdzv_configs": {"a": "b,c"}}, called.says, {}, "'a'"),
    ({"rdzv_configs": {"speed": 1}}, called.says, {}, "rdzv_configs"),
    ({"nproc": -1}, called.says, {}, "nproc_per_node"),
    ({"signals_to_handle": "SIGNO"}, called.says, {}, "signals_to_handle"),
    ({"numa_options": "node", "start_method": "fork"}, called.says, {}, "numa_options"),
]


def test_a_mistake_is_refused_by_the_name_of_the_field() -> None:
    for config, entrypoint, keywords, named in MISTAKES:
        with pytest.raises(UsageError, match=re.escape(named)):
            elastic_launch(alone(**config), entrypoint)(**keywords)
    with pytest.raises(UsageError):
        elastic_launch({"nproc_per_node": 2}, called.says)()


@pytest.mark.thorough
def test_logs_as_torchs_configuration_has_them(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With torch's own objects; the prefix is the configuration's."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig as Torchs

    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.ERR, tee={0: Std.OUT, 1: Std.ALL})
    config = Torchs(
        1,
        1,
        2,
        logs_specs=logs,
        run_id="job",
        rdzv_backend="static",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        log_line_prefix_template="<${role_name} ${rank}>",
    )
    elastic_launch(config, called.says)()
    printed = capfd.readouterr()
    lines = [f"<default_role {rank}>rank {rank} says stdout" for rank in (0, 1)]
    assert sorted(printed.out.splitlines()) == lines
    assert printed.err == "<default_role 1>rank 1 says stderr\n"
    files = {path.relative_to(tmp_path / "logs").parts[1:]: path for path in (tmp_path / "logs").rglob("*.log")}
    assert sorted(files) == [
        ("attempt_0", str(rank), f"{name}.log") for rank in (0, 1) for name in ("stderr", "stdout")
    ]
    assert files["attempt_0", "0", "stderr.log"].read_text() == "rank 0 says stderr\n"


def start(cluster: Cluster, *arguments: object, **env: str) -> AgentProcess:
    """An interpreter that finds the functions."""
    output = cluster.next_output()
    variables = cluster.env | {"PYTHONPATH": str(TESTS)} | env
    return cluster.add(cold([sys.executable, *map(str, arguments)], output, variables), output)


CALLS = KITS / "launcher" / "calls.py"


def said(agent: AgentProcess) -> dict[str, Any]:
    """All that a caller has said."""
    assert agent.wait() == 0, agent.text
    found: dict[str, Any] = {}
    for each in agent.reports():
        found |= each
    return found


@pytest.mark.thorough
def test_two_nodes_with_gloo(cluster: Cluster) -> None:
    """One has torch's configuration; each gets the results of its own workers."""
    endpoint = cluster.endpoint
    agents = [start(cluster, CALLS, who, rank, 2, 1, endpoint, "sums") for rank, who in enumerate(["ours", "torchs"])]
    assert [said(agent) for agent in agents] == [{"results": {"0": 1.5}}, {"results": {"1": 1.5}}], outputs(agents)


def waiting(cluster: Cluster, place: Path, method: str) -> AgentProcess:
    """A caller whose workers wait, with a process of their own each."""
    agent = start(cluster, CALLS, "ours", 0, 1, 2, "", "waits", place, METHOD=method)
    eventually(lambda: {"0", "1"} <= {path.name for path in place.iterdir()}, lambda: agent.text)
    return agent


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "ended", "method"), [("SIGTERM", "SIGTERM", "spawn"), ("SIGINT", "interrupted", "fork")]
)
def test_signal_stops_the_call_and_not_the_caller(
    cluster: Cluster, tmp_path: Path, number: str, ended: str, method: str
) -> None:
    """The workers end, also those that they have started, and the caller goes on."""
    agent = waiting(cluster, tmp_path, method)
    agent.process.send_signal(signal.Signals[number])
    again = {"0": "a 0 $", "1": "a 1 $"}
    assert said(agent) == {"ended": ended, "again": again, "handled": False, "threads": 1}, agent.text
    cluster.wait_gone()


@pytest.mark.parametrize("method", ["spawn", FORKSERVER])
def test_caller_that_is_killed_leaves_nothing(cluster: Cluster, tmp_path: Path, method: str) -> None:
    agent = waiting(cluster, tmp_path, method)
    cluster.kill(agent.pid)
    agent.wait()
    cluster.wait_gone()


@pytest.mark.thorough
def test_calls_leave_nothing_behind_and_need_no_torch(cluster: Cluster, temporary: Path) -> None:
    """In a process of its own: here, what earlier tests have left may end meanwhile."""
    (cluster.directory / "torch.py").write_text("raise AssertionError('torch is imported')")
    path = f"{TESTS}:{cluster.directory}"
    agent = start(cluster, KITS / "launcher" / "leaves_nothing.py", PYTHONPATH=path, TMPDIR=str(temporary))
    assert agent.wait() == 0, agent.text
    before, after = json.loads(agent.text.splitlines()[-1])
    assert after == before
    assert "torch is imported" not in agent.text


@pytest.mark.thorough
def test_classes_of_the_script_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """Also of a script that is run as a module, with flags of the interpreter."""
    (tmp_path / "script.py").write_text(
        "import sys\nfrom rdzv_launcher import LaunchConfig, elastic_launch\n"
        "class Mine:\n    pass\n"
        "def mine(): return Mine(), sys.flags.optimize, __name__\n"
        "if __name__ == '__main__':\n"
        "    found = elastic_launch(LaunchConfig(1, 1, 1, start_method='forkserver'), mine)()[0]\n"
        "    print(type(found[0]) is Mine, *found[1:])\n"
    )
    agent = start(cluster, "-O", "-m", "script", PYTHONPATH=str(tmp_path))
    assert agent.wait() == 0, agent.text
    assert agent.text == "True 1 __mp_main__\n"
