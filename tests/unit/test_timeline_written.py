"""What an agent writes of its timeline: nobody waits for it, and where it goes may be slow, full, gone or wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.timeline import BASE, TimelineFile, TimelineRecord, TimelineRecorder, parse
from rdzv_launcher.run.workers.output.output import FirstLines
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.interfaces import Outcome, RoundEvent

GROUP = WorkerGroup(1, 2, (Worker(0, 1, 1, 2, 2),), None, generation=1, pids={0: 4711})


class Kept:
    """A sink that can be held up."""

    def __init__(self) -> None:
        self.records: list[TimelineRecord] = []
        self.close = Mock()
        self.free, self.entered = threading.Event(), threading.Event()
        self.free.set()

    def take(self, record: TimelineRecord) -> None:
        self.entered.set()
        assert self.free.wait(60)
        self.records.append(record)

    @property
    def names(self) -> list[str]:
        return [each.event for each in self.records]


def test_events_of_one_life_are_told_in_their_order() -> None:
    """Of an elastic backend, which tells of its rounds on other threads."""
    sink = Kept()
    told = TimelineRecorder("job", [Mock(take=Mock(side_effect=RuntimeError)), sink], "here", "a1")
    told.takes(steps.Join(), None)
    for kind in ("placed", "served", "reached", "complete"):
        told.saw(RoundEvent(kind, 3, 1, 2))  # type: ignore[arg-type]
    told.heard(events.Joined(1), GROUP)
    told.started(GROUP)
    told.wrote(0, GROUP)
    told.wrote(0, GROUP)
    told.takes(steps.ReportFailure(0, -9), GROUP)
    told.saw(RoundEvent("over", 3, reason="node \x1b[1mb\n was lost", cause="lost"))
    told.heard(events.NodesWait(), GROUP)  # which is the same once more
    told.takes(steps.Stop(signal.SIGTERM, 30.0), GROUP)
    told.takes(steps.Kill(), GROUP)
    told.heard(events.GroupEnded(1), GROUP)
    told.takes(steps.AskPeers(), GROUP)
    told.heard(events.PeersAnswered(False), GROUP)
    told.heard(events.RestartAllowed(1.5), GROUP)
    told.takes(steps.Leave(Outcome("failed", "no more restarts")), GROUP)
    told.takes(steps.End(1, Outcome("failed")), GROUP)
    told.close()
    names = "opened joined placed served reached complete started line failed lost over stopping stopped asked answered"
    assert sink.names == [*names.split(), "delayed", "left", "ended"]
    sink.close.assert_called_once_with()
    told.saw(RoundEvent("over", 3))  # by a thread that had not heard of it
    told.close()
    assert len(sink.names) == 18
    by_name = {each.event: each for each in sink.records}
    assert {(each.run, each.host, each.agent) for each in sink.records} == {("job", "here", "a1")}
    assert (by_name["joined"].node, by_name["joined"].round) == (None, 0)
    assert {(each.node, each.round) for each in sink.records[2:]} == {(1, 3)}
    assert by_name["failed"].cause == "rank 1 (node 1, local rank 0, pid 4711) ended with signal 9 (SIGKILL)"
    assert by_name["over"].cause == by_name["lost"].cause == "node b\\n was lost", (
        "what others wrote steers no terminal"
    )
    phases = [each.phase for each in sink.records if each.event in ("placed", "started", "failed", "asked", "ended")]
    assert phases == ["connecting", "working", "ending", "deciding", "ended"]
    assert sorted(sink.records, key=lambda each: each.mono) == sink.records


def test_rounds_of_a_handler_that_tells_nothing_are_counted() -> None:
    sink = Kept()
    told = TimelineRecorder("job", [sink], "here", "a1")
    for generation in (1, 2):
        told.takes(steps.Join(), None)
        told.heard(events.Joined(0), GROUP)
        told.started(replace(GROUP, generation=generation))
        told.heard(events.NodesWait(), GROUP)
        told.heard(events.NodesWait(), GROUP)
    told.close()
    assert sink.names == ["opened", *["joined", "complete", "started", "over"] * 2]
    assert [each.round for each in sink.records if each.event == "complete"] == [1, 2]
    assert not any(each.facts.get("numbered") for each in sink.records), "they are not those of the other nodes"


def test_a_sink_that_is_stuck_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    sink = Kept()
    sink.free.clear()
    told = TimelineRecorder("job", [sink], "here", "a1", most=10)
    assert sink.entered.wait(60)
    for _ in range(50):
        told.takes(steps.Join(), None)  # each returns, or this test does not
    sink.free.set()
    told.close()
    assert sink.names == ["opened", *["joined"] * 9]
    assert "41 events" in caplog.text


RECORD = TimelineRecord("joined", 1.0, 2.0, "job", 0, "here", "a1", 1, "joining", "é")


def test_whole_lines_and_one_sentence_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = TimelineFile(str(tmp_path / "not there" / "yet"), "a/b run", "here", "a1")
    file.take(RECORD)
    write, room = os.write, [20]

    def refuse(fd: int, data: Any) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, bytes(data)[: room.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        for _ in range(5):
            file.take(RECORD)
    file.take(RECORD)
    file.close()
    once, again = caplog.messages
    assert f"{file.path}: no space left on device" in once
    assert f"5 events are missing in {file.path}" in again
    assert os.path.basename(file.path) == "a_b_run-here-a1.jsonl"
    first, torn, last = Path(file.path).read_bytes().splitlines(keepends=True)
    assert parse(first) == parse(last) == RECORD
    assert set(data := json.loads(first)) == set(BASE)
    odd = {"outcome": [1], "nested": [[[]]], "workers": {"0": "x"}, "pid": 7}
    assert parse(json.dumps(data | odd).encode()).facts == RECORD.facts | {"pid": 7}, "what no agent writes is left out"
    assert torn == first[:20] + b"\n"


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else has put it there."""
    (tmp_path / "other").write_text("precious")
    file = TimelineFile(str(tmp_path), "job", "here", "a1")
    os.symlink(tmp_path / "other", file.path)
    file.take(RECORD)
    file.close()
    assert (tmp_path / "other").read_text() == "precious"
    [said] = caplog.messages
    assert file.path in said


def test_the_first_file_that_grows_is_told_once_and_none_after_the_round(tmp_path: Path) -> None:
    """A file of an earlier round, which a plug-in's layout may use again, is not a first line."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("of the round before\n")
    told, came = list[int](), threading.Event()

    def tell(local_rank: int) -> None:
        told.append(local_rank)
        came.set()

    over = FirstLines([(1, str(new))], told.append)
    over.stop()
    here = FirstLines([(0, str(old)), (3, str(new))], tell)
    new.write_text("line\n")
    came.wait()
    for thread in [each for each in threading.enumerate() if each.name == "rdzv-first-line"]:
        thread.join()
    here.stop()
    assert told == [3]
