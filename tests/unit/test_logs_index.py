"""index.jsonl: what is written, what a disk, a broken file and a stranger's lines do to it, and what is found by it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from rdzv_launcher.run.agent.node_workers import NodeWorkers
from rdzv_launcher.run.supervisor.messages import Lost, WorkerEnded
from rdzv_launcher.run.workers.output.growing_file import last_lines
from rdzv_launcher.run.workers.output.log_files import INDEX, Index, WorkerRecord
from rdzv_launcher.tools.logs import NodeLogs, find_nodes, last_words, listing, newest_job, read_node
from rdzv_plugins.errors import UsageError
from rdzv_plugins.runtime import SYSTEM

WORKER = WorkerRecord("job", 1, 29501, 0, 0, "host", -1, "attempt_0/0/stdout.log", None)


def write(directory: Path, *workers: WorkerRecord, moved: tuple[str, str] | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    index = Index()
    index.begin(str(directory / INDEX), workers, moved)
    index.started({each.local_rank: 100 + each.rank for each in workers})
    index.flush()
    return directory


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second goes by with every line of an index."""
    monkeypatch.setattr("rdzv_launcher.run.workers.output.log_files.time", SimpleNamespace(time=count(1000).__next__))


@pytest.mark.usefixtures("clock")
def test_a_worker_is_there_from_its_start_and_its_end_is_known_later(tmp_path: Path) -> None:
    index = Index()
    index.begin(str(tmp_path / INDEX), [WORKER, replace(WORKER, rank=1, local_rank=1)], None)
    index.started({0: 100, 1: 101})
    index.flush()
    assert [each.worker.exit_code for each in read_node(str(tmp_path)).entries] == [None, None]
    index.ended(1, -9, stopped=False)
    index.ended(1, 0, stopped=False)
    index.ended(0, -15, stopped=True)
    index.flush()
    first, second = read_node(str(tmp_path)).entries
    assert (first.worker.pid, first.worker.exit_code, first.failed) == (100, -15, False)
    assert (second.worker.pid, second.worker.exit_code, second.failed) == (101, -9, True)
    assert first.began < (first.ended or 0)
    assert first.path("stdout") == str(tmp_path / "attempt_0/0/stdout.log")
    assert first.path("stderr") == ""


@pytest.fixture
def supervisor() -> Iterator[MagicMock]:
    """It tells what is in ``told``, once."""
    silent = os.eventfd(0)
    supervisor = MagicMock(fileno=lambda: silent, told=[])
    supervisor.events = lambda: [supervisor.told.pop(0) for _ in supervisor.told[:]]
    supervisor.kill_all = lambda daemons=True: supervisor.told.append(WorkerEnded(1, 1, -9)) or []
    supervisor.close.return_value = supervisor.leftovers.return_value = []
    yield supervisor
    os.close(silent)


@pytest.fixture
def node_workers(supervisor: MagicMock) -> Iterator[Any]:
    others = [MagicMock(close=list) for _ in range(6)]
    workers: Any = NodeWorkers(MagicMock(run_id="job"), supervisor, MagicMock(), *others, SYSTEM)
    with closing(workers):
        with workers._lock:
            workers._running, workers._lives = {0, 1}, True
        yield workers


@pytest.mark.parametrize("how", ["fenced", "killed"])
def test_who_was_killed_for_others_has_not_failed(node_workers: Any, supervisor: MagicMock, how: str) -> None:
    with node_workers._lock:
        supervisor.told.append(WorkerEnded(1, 0, 3))
        if how == "killed":
            node_workers.kill_all()
        else:
            node_workers._take()
            node_workers.fenced()
            supervisor.kill_all()
            node_workers._take()
    ended = [(call.args[0], call.kwargs["stopped"]) for call in node_workers._output.ended.call_args_list]
    assert dict(reversed(ended)) == {0: False, 1: True}


def test_workers_that_end_with_their_supervisor_are_not_said_to_be_killed_by_somebody_else(
    node_workers: Any, supervisor: MagicMock
) -> None:
    assert "supervisor" not in node_workers.cause(0, -9)
    with node_workers._lock:
        supervisor.told.append(Lost("the supervisor was ended by SIGKILL"))
        node_workers._take()
    assert "supervisor" in node_workers.cause(0, -9)


def test_files_are_found_where_they_were_moved(tmp_path: Path) -> None:
    write(tmp_path, WORKER)
    write(tmp_path, replace(WORKER, round=2), moved=("attempt_0", "attempt_0.round_1"))
    paths = [each.worker.stdout for each in read_node(str(tmp_path)).entries]
    assert paths == ["attempt_0.round_1/0/stdout.log", "attempt_0/0/stdout.log"]


def test_disk_that_takes_nothing_is_said_once_and_harms_nobody(tmp_path: Path, caplog) -> None:
    (tmp_path / INDEX).symlink_to("/dev/full")
    index = Index()
    index.begin(str(tmp_path / INDEX), [WORKER], None)
    index.started({0: 100})
    index.ended(0, 1, stopped=False)
    index.flush()
    assert caplog.text.count("No space left on device") == 1
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).write_text('{"half a li')
    index.begin(str(tmp_path / INDEX), [WORKER], None)
    index.started({0: 100})
    index.flush()
    node = read_node(str(tmp_path))
    assert (len(node.entries), node.unreadable) == (1, 1)


def test_lines_of_others_are_left_out_and_lead_nowhere(tmp_path: Path) -> None:
    write(tmp_path, WORKER)
    good = json.loads((tmp_path / INDEX).read_text())
    wrong = [
        *({"time": each} for each in ("soon", float("nan"), 1e300)),
        *({"stdout": each} for each in ("\ud800", "a\0b", "/etc/passwd", "../../secret", 7)),
        *({"rank": each} for each in (None, 1e999)),
        {"event": "moved", "from": "attempt_0", "to": "../elsewhere"},
    ]
    bad = [b"\xff\x00", b"[" * 100_000, b"7", *(json.dumps(good | each).encode() for each in wrong)]
    bad.append(json.dumps({key: value for key, value in good.items() if key != "pid"}).encode())
    host = json.dumps(good | {"pid": 7, "host": "\x1b[2Jhost"}).encode()
    with (tmp_path / INDEX).open("ab") as file:
        file.write(b"\n".join([*bad, host, b'{"event": "started", "ti']))
    node = read_node(str(tmp_path))
    assert (len(node.entries), node.unreadable) == (2, len(bad))
    assert "\x1b" not in node.entries[1].worker.host
    assert node.entries[0].worker.stdout == "attempt_0/0/stdout.log"


@pytest.mark.usefixtures("clock")
def test_nodes_of_a_job_are_found_by_their_rounds_and_another_launch_is_another_job(tmp_path: Path) -> None:
    def names(nodes: list[NodeLogs]) -> list[str]:
        return [Path(node.directory).name for node in nodes]

    first, again = tmp_path / "first", tmp_path / "again"
    write(first / "a", WORKER, replace(WORKER, rank=1, local_rank=1))
    write(first / "another job", replace(WORKER, store_port=29502))
    write(first / "b", replace(WORKER, rank=2))
    write(first / "b", replace(WORKER, round=2, store_port=29503))
    write(first / "c", replace(WORKER, round=2, store_port=29503, rank=1))
    nodes = find_nodes(str(first))
    assert names(nodes) == ["c", "b", "another job", "a"]
    assert sorted(names(newest_job(nodes))) == ["a", "b", "c"]
    for name, rank in (("a", 0), ("b", 1), ("a again", 0), ("b again", 1)):  # with the same rounds
        write(again / name, replace(WORKER, rank=rank))
    assert names(newest_job(find_nodes(str(again)))) == ["b again", "a again"]


def test_index_of_a_stranger_spoils_no_directory(tmp_path: Path) -> None:
    write(tmp_path / "attempt_1_x3k2", replace(WORKER, stdout="\x1b[2J\nrank 99"))  # the run's id begins so
    for name in ("attempt_1", "attempt_1.round_2"):
        write(tmp_path / name, WORKER)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / INDEX)
    (node,) = find_nodes(str(tmp_path))
    assert Path(node.directory).name == "attempt_1_x3k2"
    for lines in (listing(node.entries), last_words(node.entries, ["stdout"], 3)):
        text = list(lines)
        assert len(text) <= 3
        assert all(line.isprintable() for line in text)
        assert "\\x1b[2J\\nrank 99" in text[-1]


def test_directory_without_an_index_is_answered_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / INDEX).write_text("nonsense\n")
    for name, said in (
        ("none", "not exist"),
        ("file", "not a direc"),
        ("empty", "with workers"),
        ("broken", "readable"),
    ):
        with pytest.raises(UsageError, match=said):
            find_nodes(str(tmp_path / name))


def test_last_lines_are_those_of_all_files_of_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    (tmp_path / "stdout.log.1").write_text("".join(f"{number} {'x' * 50_000}\n" for number in range(8)))
    path.write_bytes(b"next\n\xff\nhalf")
    lines = last_lines(str(path), 5)
    assert [line[:4] for line in lines] == ["6 xx", "7 xx", "next", "\ufffd", "half"]
    assert len(lines[0]) == 50_002
    assert last_lines(str(path), 1) == ["half"]
    assert last_lines(str(tmp_path / "none.log"), 3) == []
