"""What is shown of the workers' output: whole lines, however they come, and whoever reads them or does not."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from kits import KITS
from kits.launcher.harness import WORKERS
from kits.launcher.starts_workers import parsed, round_of, spec_of

from rdzv_launcher import queued_stderr
from rdzv_launcher.run.monitor import WorkerMonitor
from rdzv_launcher.run.workers.output.console import Console
from rdzv_launcher.run.workers.output.destinations import Destinations
from rdzv_launcher.run.workers.output.filtered import FilteredFile
from rdzv_launcher.run.workers.output.lines import LONGEST, Lines
from rdzv_launcher.run.workers.output.log_files import LogFiles
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.output.tail import Tail
from rdzv_launcher.run.workers.output.tee import Tee
from rdzv_launcher.run.workers.output.view import Folded, Plain, stamped_by
from rdzv_plugins.background_queue import BackgroundQueue
from rdzv_plugins.testing.agents.processes import clean_environment

RUNNER = KITS / "launcher" / "starts_workers.py"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_whole_however_they_come(size: int) -> None:
    data = "a\r\nb\rc\n\n\u00e9\u20ac\ud7ff\nlast".encode()
    lines = Lines()
    found = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
    assert found + lines.feed(b"", final=True) == ["a\n", "b\n", "c\n", "\n", "\u00e9\u20ac\ud7ff\n", "last\n"]


def test_what_is_no_text_is_replaced() -> None:
    lines = Lines()
    assert lines.feed(b"\xff\x00x\n\xe2") == ["\ufffd\0x\n"]
    assert lines.feed(b"\x82", final=True) == ["\ufffd\n"]


def test_line_without_an_end_takes_no_memory_without_end() -> None:
    lines = Lines()
    block = b"x" * 65536
    found = [line for _ in range(40) for line in lines.feed(block)]
    assert sum(map(len, found)) - len(found) == 40 * len(block)
    assert max(map(len, found)) <= LONGEST + len(block) + 1


@pytest.mark.parametrize("kind", [Plain, Folded])
def test_prompt_is_shown_while_its_worker_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type[Plain | Folded]
) -> None:
    now, path, other = 0.0, tmp_path / "0", tmp_path / "1"
    collected = FilteredFile(str(tmp_path / "collected"), ("?",))
    view = kind(Console("stdout"), {0: "a ", 1: "b "}, lambda lines: [("", line) for line in lines])
    tails = [
        Tail(str(path), 0, view, clock=lambda: now, filtered=collected, prefix="a "),
        Tail(str(other), 1, view, clock=lambda: now),
    ]

    def shown(**added: str) -> str:
        nonlocal now
        for name, text in added.items():
            with (tmp_path / name[1:]).open("a") as file:
                file.write(text)
        for _ in range(2):
            for tail in tails:
                tail.pump(lambda: None)
            now += 1.0
        view.show(final=True)
        return capsys.readouterr().out

    assert shown(_0="begun\nname? ") == "a begun\na name? "
    assert shown() == ""
    assert shown(_0="Bob\nage? ") == "Bob\na age? "
    assert shown(_1="news\n") == "\nb news\n"  # it begins a line of its own
    assert shown(_0="42") == "a 42"
    assert shown(_1="more") == "\nb more"
    assert shown(_0="\n") == ""  # the end of one that is ended already takes no line
    assert shown(_1="\n") == "\n"
    assert shown(_0="\n") == "a \n"
    assert shown(_0="last? ") == "a last? "
    for tail in tails:
        tail.close()
    view.show(final=True)
    assert capsys.readouterr().out == "\n"
    collected.close()
    assert (tmp_path / "collected").read_text() == "a name? Bob\na age? 42\na last? \n"


def test_every_part_of_a_line_has_its_time() -> None:
    stamps = stamped_by(screen=True, files=True)(["2026-01-31T12:00:00.000Z 10%\n", "50%\n"])
    assert [(bool(time), line) for time, line in stamps] == [(True, "10%\n"), (True, "50%\n")]
    assert stamped_by(screen=False, files=True)(["2026-01-31T12:00:00.000Z 10%\n"]) == [("", "10%\n")]


def test_standard_output_that_does_not_block_gets_every_line(tmp_path: Path) -> None:
    """As a program that shares it leaves it; its reader is slower than who writes."""
    script = "from rdzv_launcher.console import open_standard_streams as opened\nopened()\n"
    script += "for each in range(50000): print('line', each)\n"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with subprocess.Popen([sys.executable, "-c", script], stdout=writer, env=clean_environment()) as process:
        os.close(writer)
        with open(reader, "rb", buffering=0) as pipe:
            data = b"".join(iter(lambda: pipe.read(512), b""))
    assert process.returncode == 0
    assert data == b"".join(b"line %d\n" % each for each in range(50000))


def runner(directory: Path, *argv: object, shell: str = "{}", **env: str) -> subprocess.CompletedProcess[bytes]:
    """The launcher in miniature, in a shell that decides on its streams."""
    command = shlex.join([sys.executable, str(RUNNER), "report.json", parsed([*map(str, argv)])])
    return subprocess.run(
        ["bash", "-c", shell.replace("{}", command)],
        capture_output=True,
        cwd=directory,
        env=clean_environment() | env,
        check=False,
    )


WRITES = """
import os, sys, time
what = sys.argv[1]
if what == "flood":
    for thousand in range(50):
        os.write(1, b"".join(b"out %d\\n" % number for number in range(1000 * thousand, 1000 * thousand + 1000)))
    os.write(1, b"no end")
elif what == "letters":
    os.write(1, "\u00e9\\n".encode())
elif what == "closes":
    os.write(1, b"before\\n")
    for fd in (0, 1, 2):
        os.close(fd)
elif what == "leaves":
    if os.fork() == 0:
        for _ in range(100000):
            if os.path.exists("over"):
                break
            os.write(1, b"still\\n")
            time.sleep(0.001)
        os._exit(0)
    os.write(1, b"mine\\n")
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WRITES)
    return path


def test_flood_is_shown_whole_and_in_order(worker: Path) -> None:
    ended = runner(worker.parent, "--tee=1", worker, "flood")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.decode().splitlines()
    assert lines == [*(f"[default0]:out {number}" for number in range(50000)), "[default0]:no end"]


def test_worker_that_closes_its_streams(worker: Path) -> None:
    ended = runner(worker.parent, "--tee=3", worker, "closes")
    assert (ended.returncode, ended.stdout) == (0, b"[default0]:before\n"), ended.stderr


def test_nobody_waits_for_what_a_worker_left_behind(worker: Path) -> None:
    try:
        ended = runner(worker.parent, "--tee=3", "--log-dir=logs", worker, "leaves")
    finally:
        (worker.parent / "over").touch()
    assert ended.returncode == 0, ended.stderr
    assert b"[default0]:mine\n" in ended.stdout


def test_file_is_shown_to_where_it_was_when_the_worker_had_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(
        str(path), 0, Plain(Console("stdout"), {0: "[default0]:"}, lambda lines: [("", each) for each in lines])
    )
    path.write_text("mine\n")
    tail.stop_here()
    with path.open("a") as file:
        file.write("of a process left behind\n")
    tail.stop_here()
    assert not tail.is_done
    while tail.pump(lambda: None):
        pass
    assert tail.is_done
    tail.close()
    assert capsys.readouterr().out == "[default0]:mine\n"


def test_reader_that_has_gone_costs_nothing(worker: Path) -> None:
    shell = "set -o pipefail; {} | head -c1"
    ended = runner(worker.parent, "--tee=1", "--log-dir=logs", worker, "flood", shell=shell)
    assert ended.returncode == 0, ended.stderr
    (log,) = worker.parent.glob("logs/*/attempt_0/0/stdout.log")
    assert log.read_bytes().endswith(b"out 49999\nno end")


def test_reader_that_does_not_read_keeps_no_worker_and_no_launcher_waiting(worker: Path) -> None:
    reader, writer = os.pipe()
    arguments = parsed(["--tee=1", "--log-dir=logs", str(worker), "flood"])
    command = [sys.executable, RUNNER, "report.json", arguments]
    with open(reader, "rb"), open(writer, "wb") as stdout:
        ended = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, cwd=worker.parent, env=clean_environment(), check=False
        )
    assert ended.returncode == 0, ended.stderr
    assert b"did not take all lines of --tee" in ended.stderr


def test_letters_that_our_stdout_lacks(worker: Path) -> None:
    ended = runner(worker.parent, "--tee=1", worker, "letters", PYTHONIOENCODING="ascii:strict", PYTHONUTF8="0")
    assert (ended.returncode, ended.stdout) == (0, rb"[default0]:\xe9" + b"\n"), ended.stderr


def test_standard_output_may_be_another_object(
    worker: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for who calls us from a program of theirs."""
    monkeypatch.chdir(worker.parent)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    spec = spec_of(["--tee=1", str(worker), "closes"])
    assert round_of(spec, Output(spec, LogFiles(spec, str(worker.parent))), 0) == []
    assert isinstance(sys.stdout, io.StringIO)
    assert sys.stdout.getvalue() == "[default0]:before\n"


def test_log_directory_that_is_gone_costs_the_files_and_not_the_job(
    worker: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Between two rounds something else takes its place; at last there is no place at all."""
    logs, instead = worker.parent / "logs", worker.parent / "instead"
    spec = spec_of([f"--log-dir={logs}", "--redirects=1", str(worker), "closes"])
    files = LogFiles(spec, str(instead))
    output = Output(spec, files)
    for taken in (logs, instead):
        assert round_of(spec, output, 0) == []
        (log,) = taken.glob("*/attempt_0/0/stdout.log")
        assert log.read_text() == "before\n"
        (taken / "aside").mkdir()
        for found in taken.glob("none_*"):
            found.rename(taken / "aside" / found.name)
        taken.rename(f"{taken}.aside")
        taken.write_text("a file")
    assert capfd.readouterr().out == ""
    assert round_of(spec, output, 0) == []
    assert capfd.readouterr().out == "before\n"
    assert output.root == os.devnull
    assert f"the workers' files go to {instead}" in caplog.text
    assert "the workers' files are left out, and their output comes here" in caplog.text


def test_a_job_whose_nodes_come_and_go_keeps_the_output_of_its_newest_rounds(tmp_path: Path) -> None:
    files = LogFiles(spec_of(["--redirects=1", f"--log-dir={tmp_path}", "train.py"]), "")
    for number in range(1, 20):
        Path(files.begin({0: {"RDZV_ROUND": str(number)}}).stdouts[0]).write_text(f"of round {number}\n")
    kept = {path.name: (path / "0/stdout.log").read_text() for path in tmp_path.glob("*/attempt_*")}
    assert kept.pop("attempt_0") == "of round 19\n"
    assert kept == {f"attempt_0.round_{number}": f"of round {number}\n" for number in range(9, 19)}


def test_prefix_is_of_the_worker_whatever_a_plugin_has_made_of_its_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same RANK twice; and a class of --logs-specs shows a file more than there are workers."""
    paths = {local_rank: str(tmp_path / str(local_rank)) for local_rank in range(3)}

    class Shows:
        root = str(tmp_path)

        def begin(self, variables: object) -> Destinations:
            return Destinations({0: "", 1: ""}, {0: "", 1: ""}, teed_stdouts=paths)

    output = Output(spec_of(["--nproc-per-node=2", "train.py"]), Shows())
    output.begin({0: {"RANK": "0"}, 1: {"RANK": "0"}})
    for local_rank, path in paths.items():
        Path(path).write_text(f"of {local_rank}\n")
    output.end()
    assert sorted(capsys.readouterr().out.splitlines()) == ["[default0]:of 0", "[default1]:of 1", "of 2"]


@pytest.mark.parametrize("kind", [Plain, Folded])
def test_no_line_is_dropped_when_stderr_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Plain | Folded]
) -> None:
    """However many lines one look at the files has found, and however long they are with their prefixes."""
    held, limit, flows = 350_000, 1 << 20, threading.Event()
    delivered, dropped = list[bytes](), list[int]()

    class Stuck(BackgroundQueue[bytes]):
        def has_room(self, otherwise: Callable[[], None]) -> bool:
            if not (room := super().has_room(otherwise)):
                flows.set()
            return room

    def deliver(data: bytes) -> None:
        flows.wait()
        delivered.append(data)

    queue = Stuck("stuck", deliver, dropped.append, limit=limit)
    monkeypatch.setattr(queued_stderr, "_queue", queue)
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(queued_stderr._Stderr(queue), "utf-8", write_through=True))
    queue.put(b"x" * held, held)
    prefixes = {rank: f"{'host' * 12}:{rank} " for rank in range(4)}
    view = kind(Console("stderr"), prefixes, lambda lines: [("", line) for line in lines])
    for rank in prefixes:
        (tmp_path / str(rank)).write_text(f"{rank}\n" * 40_000)
    tee = Tee([Tail(str(tmp_path / str(rank)), rank, view) for rank in prefixes], [], [view])
    assert tee.stop(60, 300)
    assert queue.flush(60)
    lines = b"".join(delivered[1:]).decode().splitlines()
    assert dropped == []
    assert [lines.count(f"{prefix}{rank}") for rank, prefix in prefixes.items()] == [40_000] * 4


def test_full_disk_ends_a_collected_file_and_nothing_else(worker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(["--tee=1", "--duplicate-stdout-filters=out", f"--log-dir={worker.parent}", str(worker), "flood"])
    files = LogFiles(spec, "")

    class Full:
        """Collects in /dev/full."""

        root = ""

        def begin(self, variables):  # type: ignore[no-untyped-def]
            return msgspec.structs.replace(files.begin(variables), filtered_stdout="/dev/full")

    assert round_of(spec, Output(spec, Full()), 0) == []
    assert capfd.readouterr().out.endswith("[default0]:out 49999\n[default0]:no end\n")


def test_no_thread_is_left_when_a_round_is_over(worker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = spec_of(["--tee=3", f"--log-dir={worker.parent}", str(worker), "closes"])
    before = set(threading.enumerate())
    assert round_of(spec, Output(spec, LogFiles(spec, "")), 0) == []
    assert not set(threading.enumerate()) - before


def test_stderr_that_goes_to_ours_can_be_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the monitor, which keeps the last lines; files are left to it as they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "said").mkdir()
    monitor = WorkerMonitor(tmp_path / "pipes")
    try:
        spec = spec_of(
            ["--nproc-per-node=2", "--redirects=0:2", f"--log-dir={tmp_path}", str(WORKERS / "writes.py"), "said"]
        )
        failures = round_of(spec, Output(spec, LogFiles(spec, ""), monitor.attach), 0)
        assert [each.summary for each in failures] == ["ValueError: a fault on purpose"]
        assert "says 0 0 pear" in monitor.tail(0)
        assert monitor.tail(1)[-1] == "ValueError: a fault on purpose"
    finally:
        monitor.close()
