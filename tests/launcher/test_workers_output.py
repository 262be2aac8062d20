"""What is shown of the workers' output: whole lines, however they come, and whoever reads them or does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from kits import KITS
from kits.launcher.harness import WORKERS
from kits.launcher.starts_workers import parsed, round_of, spec_of

from rdzv_launcher.run.monitor import WorkerMonitor
from rdzv_launcher.run.workers.output.console import LONGEST, Console, Lines, View
from rdzv_launcher.run.workers.output.log_files import LogFiles
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.output.shown import FilteredFile, Tail
from rdzv_plugins.testing.processes import clean_environment

RUNNER = KITS / "launcher" / "starts_workers.py"
Ended = subprocess.CompletedProcess[bytes]


def test_lines_are_whole_however_they_come() -> None:
    data = "a\r\nb\rc\n\n\u00e9\u20ac\ud7ff\nlast".encode() + b"\xff"  # which is no text
    for size in (1, 2, 3, 7, 100):
        lines = Lines()
        found = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
        found += lines.feed(b"", final=True)
        assert found == ["a\n", "b\n", "c\n", "\n", "\u00e9\u20ac\ud7ff\n", "last\ufffd\n"]


def test_line_without_an_end_takes_no_memory_without_end() -> None:
    lines = Lines()
    block = b"x" * 65536
    found = [line for _ in range(40) for line in lines.feed(block)]
    assert sum(map(len, found)) - len(found) == 40 * len(block)
    assert max(map(len, found)) <= LONGEST + len(block) + 1


@pytest.mark.parametrize("fold", [False, True], ids=["plain", "folded"])
def test_prompt_is_shown_while_its_worker_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str], fold: bool) -> None:
    now, path, other = 0.0, tmp_path / "0", tmp_path / "1"
    collected = FilteredFile(str(tmp_path / "collected"), ("?",))
    view = View(Console("stdout"), {0: "a ", 1: "b "}, fold=fold)
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


@pytest.mark.thorough
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


def runner(directory: Path, *argv: object, stdout: int | IO[bytes] = subprocess.PIPE) -> Ended:
    """The launcher in miniature."""
    command = [sys.executable, str(RUNNER), "report.json", parsed([*map(str, argv)])]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, cwd=directory, env=clean_environment(), check=False
    )


WRITES = """
import os, sys
if sys.argv[1] == "flood":
    for thousand in range(50):
        os.write(1, b"".join(b"out %d\\n" % number for number in range(1000 * thousand, 1000 * thousand + 1000)))
    os.write(1, b"no end")
else:
    os.write(1, b"before\\n")
    for fd in (0, 1, 2):
        os.close(fd)
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


def test_file_is_shown_to_where_it_was_when_the_worker_had_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(str(path), 0, View(Console("stdout"), {0: "[default0]:"}))
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


@pytest.mark.thorough
def test_reader_that_does_not_read_keeps_no_worker_and_no_launcher_waiting(worker: Path) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "wb") as stdout:
        ended = runner(worker.parent, "--tee=1", "--log-dir=logs", worker, "flood", stdout=stdout)
    assert ended.returncode == 0, ended.stderr
    assert b"--tee" in ended.stderr


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
    assert str(instead) in caplog.text


def test_a_job_whose_nodes_come_and_go_keeps_the_output_of_its_newest_rounds(tmp_path: Path) -> None:
    files = LogFiles(spec_of(["--redirects=1", f"--log-dir={tmp_path}", "train.py"]), "")
    for number in range(1, 20):
        Path(files.begin({0: {"RDZV_ROUND": str(number)}}).stdouts[0]).write_text(f"of round {number}\n")
    kept = {path.name: (path / "0/stdout.log").read_text() for path in tmp_path.glob("*/attempt_*")}
    assert kept.pop("attempt_0") == "of round 19\n"
    assert kept == {f"attempt_0.round_{number}": f"of round {number}\n" for number in range(9, 19)}


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
