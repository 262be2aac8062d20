"""--log-prefix and its like: the screen can be read, and the files are what they were without."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from kits import ROOT
from kits.eventually import eventually
from kits.launcher.harness import BIN, WORKERS, Cluster
from kits.launcher.starts_workers import round_of, spec_of

from rdzv_launcher.run.workers.output import console
from rdzv_launcher.run.workers.output.console import Console, View
from rdzv_launcher.run.workers.output.growing_file import all_of
from rdzv_launcher.run.workers.output.log_files import LogFiles
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.output.shown import Allowance, Tail

STAMP = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
SCRIPT = WORKERS / "says_odd_things.py"


def files_of(directory: Path) -> dict[str, bytes]:
    """The log files of a job's only attempt, by their paths in it."""
    (attempt,) = directory.glob("*/attempt_0")
    return {str(path.relative_to(attempt)): path.read_bytes() for path in attempt.rglob("*.log")}


def lines_of(file: bytes) -> list[str]:
    """As they are shown."""
    text = file.decode(errors="replace")
    return io.IncrementalNewlineDecoder(None, True).decode(text).removesuffix("\n").split("\n")


def run(cluster: Cluster, name: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    command = [BIN / "rdzv-run", "--nproc-per-node=4", f"--log-dir={cluster.directory / name}", *options, SCRIPT]
    done = subprocess.run(command, capture_output=True, env=cluster.env, cwd=cluster.directory, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_files_are_those_of_a_plain_run_whatever_is_shown(cluster: Cluster) -> None:
    run(cluster, "plain", "--redirects=3")
    plain = files_of(cluster.directory / "plain")
    assert len(plain) == 8

    template = "<${host}/${rank}/${local_rank}>"
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template}
    cluster.env |= env
    shown = run(cluster, "shown", "--log-prefix", "--ranks-filter=1-2", "--log-timestamps=screen", "--no-fold")
    for name in env:
        del cluster.env[name]
    assert files_of(cluster.directory / "shown") == plain
    host = os.uname().nodename
    for rank in range(4):
        start = re.compile(rb"^" + STAMP + re.escape(f"<{host}/{rank}/{rank}>".encode()), re.MULTILINE)
        for stream, text in (("stdout", shown.stdout), ("stderr", shown.stderr)):
            lines = [line for line in text.split(b"\n") if start.match(line)]
            own = lines_of(plain[f"{rank}/{stream}.log"])
            assert [start.sub(b"", line).decode() for line in lines] == (own if rank in (1, 2) else [])


def test_what_workers_print_alike_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "WINDOW_S", 600.0)  # however busy the machine is
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    for name, option in (("plain", "--redirects=3"), ("folded", "--log-prefix")):
        spec = spec_of([option, "--nproc-per-node=4", f"--log-dir={tmp_path / name}", str(SCRIPT)])
        assert round_of(spec, Output(spec, LogFiles(spec, "")), 0) == []
    plain = files_of(tmp_path / "plain")
    assert files_of(tmp_path / "folded") == plain
    out, err = capfd.readouterr()
    assert err.splitlines() == [f"[ranks 0-3] warning {line}" for line in range(200)]
    assert [line for line in out.splitlines() if "alike" in line] == [f"[ranks 0-3] alike {n}" for n in range(200)]
    for rank in range(4):
        assert out.count(f"host:{rank} of {rank} alone\n") == len([n for n in range(200) if n % 7 == rank])
    assert "half of a line" in out  # once for each where a busy machine shows it before its end has come


def test_screen_that_stands_still_holds_up_no_worker(cluster: Cluster) -> None:
    reader, writer = os.pipe()
    done = cluster.directory / "done"
    script = cluster.directory / "floods.py"
    script.write_text(
        f"import os\nfor n in range(20000): os.write(1, b'line %d\\n' % n)\nopen({str(done)!r}, 'a').close()"
    )
    options = ["--log-prefix", f"--log-dir={cluster.directory / 'logs'}", "--nproc-per-node=2"]
    with open(writer, "wb") as stdout:
        agent = subprocess.Popen([BIN / "rdzv-run", *options, script], stdout=stdout, env=cluster.env)
    try:
        eventually(done.exists, lambda: "the workers do not end")
    finally:
        os.close(reader)  # whoever reads has gone: nobody waits for that either
    assert agent.wait(60) == 0
    whole = b"".join(b"line %d\n" % number for number in range(20000))
    (attempt,) = (cluster.directory / "logs").glob("*/attempt_0")
    for rank in "01":
        assert (attempt / rank / "stdout.log").read_bytes() == whole


def test_flood_is_shown_in_part_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("".join(f"line {number}\n" for number in range(500_000)))
    view = View(Console("stdout"), {0: "host:0 "})
    tail = Tail(str(path), 0, view, allowance=Allowance(lambda: 0.0))
    tail.stop_here()
    while not tail.is_done:
        tail.pump(lambda: None)
    tail.close()
    out = capsys.readouterr().out
    assert out.endswith("host:0 line 499999\n")
    assert re.search(rf"host:0 \(.*{path}.*\)\n", out)
    assert len(out) < 1 << 20


def test_steady_flood_gets_no_more_than_its_allowance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, now = tmp_path / "stdout.log", 0.0
    view = View(Console("stdout"), {0: ""})
    tail = Tail(str(path), 0, view, allowance=Allowance(lambda: now))
    with path.open("a") as file:
        for _ in range(600):  # 100 KiB a second
            file.write(f"{'x' * 1023}\n" * 10)
            file.flush()
            tail.pump(lambda: None)
            now += 0.1
    assert tail.floods
    now += 2.0
    assert not tail.floods
    tail.close()
    assert (60 - 2) << 14 < len(capsys.readouterr().out) < (256 << 10) + (61 << 14)


def copied_and_truncated(path: Path) -> None:
    """As logrotate does it with ``copytruncate``."""
    for number in (2, 1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.with_name(f"{path.name}.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)


def renamed(path: Path) -> None:
    """As logrotate does it without: the writer has the old file open."""
    path.replace(path.with_name(f"{path.name}.1"))
    path.touch()


@pytest.mark.parametrize("move", [copied_and_truncated, renamed])
def test_every_line_is_shown_of_a_file_that_is_rotated_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], move: Callable[[Path], None]
) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(str(path), 0, View(Console("stdout"), {0: ""}))
    with open(path, "ab", buffering=0) as worker:
        worker.writelines(b"line %d\n" % number for number in range(2000))
        tail.pump(lambda: None)
        worker.writelines(b"line %d\n" % number for number in range(2000, 4000))  # which are not read yet
        move(path)
        worker.writelines(b"line %d\n" % number for number in range(4000, 5000))
    tail.stop_here()
    while not tail.is_done:
        tail.pump(lambda: None)
    tail.close()
    assert capsys.readouterr().out == "".join(f"line {number}\n" for number in range(5000))


def test_lines_of_a_file_that_somebody_empties_are_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("line 0\n")
    tail = Tail(str(path), 0, View(Console("stdout"), {0: ""}))
    tail.pump(lambda: None)
    path.write_text("1\n")
    tail.pump(lambda: None)
    tail.close()
    first, said, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("line 0", "1")
    assert str(path) in said


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("logrotate") is None, reason="needs logrotate")
def test_logrotate_rotates_what_workers_write(cluster: Cluster) -> None:
    """The page's own configuration, while a worker writes a line after the other, and waits for the file to move."""
    script, logs = cluster.directory / "writes.py", cluster.directory / "logs"
    script.write_text(WRITES)
    page = (ROOT / "docs/how-to/logs.md").read_text()
    (found,) = re.findall(r"```text\n(/var/log/jobs.*?)```", page, re.DOTALL)
    config, state = cluster.directory / "logrotate.conf", cluster.directory / "state"
    config.write_text(found.replace("/var/log/jobs", str(logs)).replace("size 100M", "size 1"))
    agent = cluster.start(["rdzv-run", "--log-prefix", f"--log-dir={logs}", script, cluster.directory / "go"])
    for turn in (1, 2):
        agent.wait_for(f"line {turn}99")
        subprocess.run([shutil.which("logrotate"), "-s", state, config], check=True)
        (cluster.directory / f"go{turn}").touch()
    assert agent.wait() == 0
    (stream,) = logs.glob("*/attempt_0/0/stdout.log")
    assert [len(Path(each).read_text().splitlines()) for each in all_of(str(stream))] == [70, 40, 10]
    lines = [line for line in agent.text.splitlines() if "line " in line]
    assert [line.rpartition(" ")[2] for line in lines] == [
        str(100 * turn + number) for turn in (1, 2, 3) for number in range(30 * turn, 100)
    ]


WRITES = """
import os, sys, time
for turn in (1, 2, 3):
    for number in range(30 * turn, 100):  # fewer each time: a file as long as before has not been truncated
        os.write(1, b"line %d\\n" % (100 * turn + number))
    while turn < 3 and not os.path.exists(f"{sys.argv[1]}{turn}"):
        time.sleep(0.01)
"""
