"""What is read of the workers' ends: error files and failures, as torch's own classes read the same."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, ProcessFailure

from rdzv_launcher.run.workers.failures import (
    WorkerFailure,
    hand_to_scheduler,
    read_error_file,
    record_own_error,
    worker_failure,
)
from rdzv_plugins.interfaces import Failure


def raised(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def torch_records(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """As a worker with @record leaves it."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    try:
        raise ValueError(text)
    except ValueError as error:
        ErrorHandler().record_exception(error)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    return str(path)


def failure(error_file: str = "", *, code: int = 1, rank: int = 0, ended: float = 0.0) -> WorkerFailure:
    told = Failure(0, "here", global_rank=rank, local_rank=rank, pid=7, exit_code=code, stderr=("a line",))
    return worker_failure(told, ended, error_file)


def test_recorded_failure_is_as_torch_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = torch_records(tmp_path / "error.json", "on purpose", monkeypatch)
    theirs, ours = ProcessFailure(0, 7, 1, path), failure(path, ended=time.time() + 1000)
    assert ours.timestamp == theirs.timestamp
    assert ours.record is not None
    assert ours.record.callstack == theirs.message["extraInfo"]["py_callstack"]
    assert ours.summary == theirs.message["message"] == "ValueError: on purpose"
    assert ours.traceback == ours.record.callstack
    for name in ("local_rank", "pid", "exitcode", "error_file", "error_file_data", "message"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("signal_name", "timestamp_isoformat"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name


def test_message_of_a_signal_is_torchs(tmp_path: Path) -> None:
    nothing = str(tmp_path / "error.json")
    for number in (signal.SIGKILL, 99):
        theirs, ours = ProcessFailure(0, 7, -number, nothing), failure(nothing, code=-number)
        assert ours.message == ours.summary == theirs.message
        assert ours.signal_name() == theirs.signal_name()
        assert (ours.error_file, ours.record) == (theirs.error_file, None)


MESSAGES = [
    {"message": "text", "timestamp": "12"},
    {"message": "text"},
    {"message": {"message": "text", "extraInfo": {"py_callstack": "a\nb", "timestamp": "13"}}, "other": [1]},
]


@pytest.mark.parametrize(("data", "code"), [*zip(MESSAGES, [0, 1, -11], strict=True)])
def test_scheduler_gets_what_torch_would_give_it(
    data: dict[str, object], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.json"
    worker.write_text(json.dumps(data))
    record = read_error_file(str(worker))
    assert record is not None
    assert record.message == "text"
    assert int(record.timestamp) == ProcessFailure(0, 7, 1, str(worker)).timestamp
    found = []
    for who in ("torch", "ours"):
        target = tmp_path / who
        target.write_text("of an earlier job")
        if who == "torch":
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(target))
            ErrorHandler().dump_error_file(str(worker), code)
        else:
            assert hand_to_scheduler(str(worker), code, str(target))
        found.append(json.loads(target.read_text()))
    assert found[0] == found[1]


def test_file_that_nobody_can_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    for content in (b"", b"[1]", b"{}", b'{"message": 3}', b"\xff\xfe", b"[" * 200000):
        path.write_bytes(content)
        assert read_error_file(str(path)) is None
        assert failure(str(path), code=-9).exitcode == -9


def test_pipe_in_place_of_an_error_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "error.json")
    assert read_error_file(str(tmp_path / "error.json")) is None


def test_nothing_to_hand_on_and_nowhere_to_put_it(tmp_path: Path) -> None:
    target, worker = tmp_path / "target", tmp_path / "worker"
    assert not hand_to_scheduler(str(worker), 1, str(target))
    assert not target.exists()
    worker.write_text('{"message": "text"}')
    assert not hand_to_scheduler(str(worker), 1, "")
    assert not hand_to_scheduler(str(worker), 1, str(tmp_path / "no" / "such"))
    assert not hand_to_scheduler(str(worker), 1, "/dev/full")


def test_own_error_is_recorded_as_torch_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = json.loads(Path(torch_records(tmp_path / "theirs", "on purpose", monkeypatch)).read_text())["message"]
    assert record_own_error(raised("on purpose"), str(tmp_path / "ours"))
    ours = json.loads((tmp_path / "ours").read_text())["message"]
    assert ours["message"] == theirs["message"]
    assert ours["extraInfo"].keys() == theirs["extraInfo"].keys()
    assert ours["extraInfo"]["py_callstack"].splitlines()[-1] == theirs["extraInfo"]["py_callstack"].splitlines()[-1]
    assert ours["extraInfo"]["timestamp"].isdecimal()
    assert not record_own_error(raised("on purpose"), "")
