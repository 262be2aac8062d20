"""Stacks: groups and the sentence about them, foreign answers, a full disk; workers that write theirs when asked."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rdzv_launcher.run.stacks import processes, reading
from rdzv_launcher.run.stacks.node import NodeSnapshot, NodeStacks, StackedWorker
from rdzv_launcher.run.stacks.reading import gather
from rdzv_launcher.run.stacks.reports import (
    Frame,
    Silent,
    WorkerReport,
    answer_of,
    grouped,
    limited,
    read,
    report_text,
    workers_of,
)
from rdzv_launcher.run.supervisor.in_worker import ROOTS, hooked
from rdzv_launcher.run.supervisor.in_worker import VARIABLE as IN_WORKER
from rdzv_plugins.questions import RpcRequest, RpcResponse, UnknownKind
from rdzv_plugins.stacks_on_request import SIGNAL, VARIABLE

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCE = [["all_reduce", TORCH, 3018], ["wrapper", TORCH, 83], ["step", "/home/me/train.py", 30]]
LOAD = [["Queue.get", "/usr/lib/python3.11/queue.py", 180], ["_Iter.__next__", "/x/site-packages/torch/d.py", 5]]
LOAD += [["step", "/home/me/train.py", 28]]


def answer(node_rank: int, *workers: tuple[int, list[Any], dict[str, Any]]) -> dict[str, Any]:
    """A node's; of each worker the rank, the stack, and what is special."""
    told = [
        {"rank": rank, "local_rank": 0, "pid": 1000 + rank, "state": "S", "how": "py-spy" if stack else ""}
        | {"threads": [{"name": "MainThread", "main": True, "active": False, "stack": at}] if stack else []}
        | special
        for at, (rank, stack, special) in enumerate(workers)
    ]
    about = {"node_rank": node_rank, "host": f"host-{node_rank}", "agent": 1, "workers": told}
    return about | {"stacks": [stack for _, stack, _ in workers]}


def active(at: int) -> dict[str, Any]:
    return {"threads": [{"name": "MainThread", "main": True, "active": True, "stack": at}]}


def job(*answers: dict[str, Any]) -> list[WorkerReport]:
    return [worker for each in answers for worker in workers_of(each)]


def test_equal_stacks_are_one_group_and_the_odd_ones_come_first() -> None:
    first = answer(0, *((rank, REDUCE, {}) for rank in range(32)))
    second = answer(1, *((rank, LOAD if rank == 40 else REDUCE, {}) for rank in range(32, 64)))
    text = report_text(job(first, second))
    assert text.splitlines()[0] == (
        "64 workers on 2 nodes: rank 40 (node 1 on host-1) is in _Iter.__next__, called at train.py:28 in step; "
        "the other 63 are in all_reduce, called at train.py:30 in step"
    )
    assert "Ranks 0-39, 41-63 (nodes 0-1, pids 1000, 1001, 1002, 1003 and 59 more): waiting" in text
    assert text.count("all_reduce (") == 1


def test_the_sentence_names_the_oddest_and_counts_the_others() -> None:
    stacks = [(rank, [["f", "/home/me/train.py", rank]], {}) for rank in range(6)]
    same = [(rank, REDUCE, {}) for rank in (6, 7)]
    first = report_text(job(answer(0, *stacks, *same))).splitlines()[0]
    assert first.startswith("8 workers on 1 node: rank 0 (node 0 on host-0) is at train.py in f; rank 1 ")
    assert first.endswith("; 2 more at 2 other places; the other 2 are in all_reduce, called at train.py:30 in step")
    assert "rank 4" not in first
    assert report_text(job(answer(0, *same))).startswith("2 workers on 1 node: all are in all_reduce, ")


LOOP = [[["loop", "/home/me/train.py", line], ["main", "/home/me/train.py", 90]] for line in (3, 4, 5)]


@pytest.mark.parametrize(
    ("workers", "groups"),
    [
        # what stands still comes before what waits
        (
            [
                *((0, REDUCE, {}), (1, REDUCE, {}), (2, LOAD, {})),
                *((3, REDUCE, {"state": "T"}), (4, REDUCE, {"state": "D"}), (5, [], {"state": "ended"})),
            ],
            [("ended", [5]), ("stopped", [3]), ("stuck", [4]), ("waiting", [2]), ("waiting", [0, 1])],
        ),
        ([(0, REDUCE, {}), (1, LOAD, {})], [("waiting", [1]), ("waiting", [0])]),
        # a worker that runs changes its line, but not its place; one polls at this moment
        ([(rank, stack, active(rank)) for rank, stack in enumerate(LOOP)], [("running", [0, 1, 2])]),
        ([(rank, stack, {}) for rank, stack in enumerate(LOOP)], [("waiting", [rank]) for rank in range(3)]),
        ([(0, REDUCE, {}), (1, REDUCE, active(1)), (2, REDUCE, {})], [("waiting", [0, 1, 2])]),
    ],
)
def test_who_is_in_one_group_and_which_comes_first(workers: list[Any], groups: list[tuple[str, list[int]]]) -> None:
    assert [(each.kind, each.ranks) for each in grouped(job(answer(0, *workers)))] == groups


def test_stacks_without_an_end_are_cut_and_what_nodes_wrote_steers_no_terminal() -> None:
    deep = limited([Frame("again", "/a.py", 1)] * 5000)
    assert len(deep) < 200
    assert any("more calls" in frame.function for frame in deep)
    evil = [["f\x1b[2J", "/home/\x1b]0;x\x07.py", 3]]
    text = report_text(job(answer(0, (0, evil, {"wait_channel": "\x1b[1m"}))), [Silent("node\x1b", "is\nsilent")])
    assert "\x1b" not in text
    assert "\nsilent" not in text


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        {"stacks": [], "workers": [], "host": 3, "node_rank": 0},
        answer(0, (0, REDUCE, {"threads": [{"name": "", "main": True, "stack": 7}]})),
        answer(0, (0, REDUCE, {"threads": [{"name": "", "main": True, "stack": -1}]})),
        answer(0, (0, [["f", "g"]], {})),
        answer(0, (0, REDUCE, {"below": [{"below": 5}]})),
    ],
)
def test_an_answer_that_is_none_is_a_node_without_one(garbage: Any) -> None:
    workers, (silent,) = read([RpcResponse(3, "host-3", 12, garbage)])
    assert (workers, silent.name) == ([], "node 3 on host-3 (pid 12)")
    assert silent.problem.startswith("sent an answer that cannot be read")


def test_a_node_without_workers_is_no_silent_one() -> None:
    workers, (idle,) = read([RpcResponse(None, "host-3", 12, answer(3))])
    assert workers == []
    assert "host-3 (pid 12)" in report_text(workers, [idle])


PATIENCE_S = 60.0
REGISTERS = {
    "worker": ("import rdzv_plugins.worker", {}),
    "hook": ("", hooked({IN_WORKER: ROOTS})),  # its job has --worker-stacks
    "fork": (
        "from rdzv_launcher.run.supervisor.in_worker import arrange; arrange()",
        {IN_WORKER: ROOTS},
    ),  # of a template
}


@contextmanager
def process(directory: Path, code: str, **more: str) -> Iterator[int]:
    """One that runs ``code`` and then waits in a function called ``here``; gives the process id that it says."""
    code += "\nimport os, sys, time\ndef here():\n    sys.stdout.write(f'{os.getpid()}\\n'); sys.stdout.flush()\n"
    code += "    time.sleep(600)\nhere()"
    env = os.environ | {VARIABLE: f"{directory},{os.getpid()}"} | more
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as started:
        assert started.stdout is not None
        try:
            yield int(started.stdout.readline())
        finally:
            started.kill()


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[int]:
    with process(tmp_path, "") as pid:
        while (seen := processes.look(pid)) is not None and seen.state != "S":
            pass  # it is about to sleep
        yield pid


def test_where_nothing_can_be_written_the_log_has_it(sleeper: int, tmp_path: Path, caplog) -> None:
    node, logs = NodeSnapshot("host-a", 1, workers=(StackedWorker(0, 0, sleeper),)), str(tmp_path / "file" / "below")
    stacks = NodeStacks(lambda: node, str(tmp_path), logs=logs, on_request=False)
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "rdzv_launcher"):
        stacks.store("have not ended", 60)
    (record,) = caplog.records
    assert f"cannot write {logs}/" in record.getMessage()
    assert "in here" in record.getMessage()


def test_other_questions_are_none_for_it(tmp_path: Path) -> None:
    stacks = NodeStacks(lambda: NodeSnapshot("host-a", 1), str(tmp_path), on_request=False)
    with pytest.raises(UnknownKind):
        stacks.answer(RpcRequest("0" * 32, "other", {}))
    for within in (0, -1, 1e9, "x", None, [1]):
        with pytest.raises(ValueError, match="is not a time"):
            stacks.answer(RpcRequest("0" * 32, "stacks", {"within": within}))
    assert stacks.answer(RpcRequest("0" * 32, "stacks", {}))["workers"] == []


def test_without_py_spy_it_is_said_what_was_tried(sleeper: int, monkeypatch) -> None:
    monkeypatch.setattr(reading, "py_spy", lambda: None)
    node = NodeSnapshot("host-a", 1, workers=(StackedWorker(0, 0, sleeper),))
    (worker,) = gather(node, within=60)
    assert workers_of(answer_of(node, [worker])) == [worker], "as it is when it arrives elsewhere"
    assert worker.process.how == ""
    assert "pip install 'rdzv-plugins[diagnose]'" in worker.process.tried[0]
    assert "--worker-stacks" in worker.process.tried[1]
    assert worker.process.state == "S"


def functions(pid: int, directory: Path) -> list[str]:
    found = processes.look(pid)
    assert found is not None
    main, *_ = reading.by_request(found, directory, timeout=PATIENCE_S)
    assert main.is_main
    return [frame.function for frame in main.frames]


@pytest.mark.parametrize("how", REGISTERS)
def test_a_worker_writes_where_its_main_thread_is_each_time(how: str, tmp_path: Path) -> None:
    threads = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    code, variables = REGISTERS[how]
    with process(tmp_path, f"{code}\n{threads}", **variables) as pid:
        for _ in range(3):
            assert functions(pid, tmp_path) == ["here", "<module>"]


def test_a_forked_child_writes_into_a_file_of_its_own(tmp_path: Path) -> None:
    fork = "import os, sys\nread, write = os.pipe()\nif pid := os.fork():\n    os.close(write); os.read(read, 1)"
    code = f"{REGISTERS['worker'][0]}\n{fork}\n    os.waitpid(pid, 0); sys.exit()"
    with process(tmp_path, code) as child:
        try:
            assert functions(child, tmp_path) == ["here", "<module>"]
            assert len(list(tmp_path.iterdir())) == 2
        finally:
            os.kill(child, 9)


def test_nothing_of_the_hook_is_left_for_the_program_and_its_own_hook_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("theirs = True")
    program = "import os, sys; print(os.environ.get('PYTHONPATH'), 'RDZV_IN_WORKER' in os.environ, *sys.path)"
    program += "; import sitecustomize; print(sitecustomize.theirs)"
    said = []
    for more in ({}, {IN_WORKER: ROOTS, VARIABLE: f"{tmp_path},{os.getpid()}"}):
        env = hooked(os.environ | {"PYTHONPATH": str(tmp_path)} | more)
        said.append(subprocess.check_output([sys.executable, "-c", program], env=env, text=True))
    assert said[0] == said[1]
    assert said[0].startswith(f"{tmp_path} False ")


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        f"import signal; signal.signal({SIGNAL}, lambda *_: None); import rdzv_plugins.worker",
        f"import os; os.environ.pop('{VARIABLE}'); import rdzv_plugins.worker",
        f"import os; os.environ['{VARIABLE}'] = '/no/such/directory,1'; import rdzv_plugins.worker",
        f"import os; os.environ['{VARIABLE}'] = 'x'; import rdzv_plugins.worker",
    ],
)
def test_who_has_not_said_so_gets_no_signal(code: str, tmp_path: Path) -> None:
    with process(tmp_path, code) as pid:
        with pytest.raises(reading.NoStacks, match="does not write its stacks itself"):
            functions(pid, tmp_path)
        assert processes.is_there(processes.look(pid))
