"""--log-prefix and its like: the screen can be read, and the files are what they were without."""

from __future__ import annotations

import io
import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.harness import BIN, WORKERS, Cluster
from kits.launcher.starts_workers import round_of, spec_of

from rdzv_launcher.run.workers.output import fold
from rdzv_launcher.run.workers.output.allowance import Allowance
from rdzv_launcher.run.workers.output.console import Console
from rdzv_launcher.run.workers.output.log_copy import LogCopy
from rdzv_launcher.run.workers.output.log_files import LogFiles
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.output.rotated import all_of
from rdzv_launcher.run.workers.output.tail import Tail
from rdzv_launcher.run.workers.output.view import Plain

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


def unfolded(text: str) -> dict[int, list[str]]:
    """The lines of each of four workers, from what is shown of all."""
    found: dict[int, list[str]] = {rank: [] for rank in range(4)}
    for line in text.removesuffix("\n").split("\n"):
        parts = re.fullmatch(r"(?:\[ranks ([\d, -]+)\]|host:(\d)) (.*)", line)
        assert parts, line
        for each in (parts[1] or parts[2]).split(","):
            first, _, last = each.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                found[rank].append(parts[3])
    return found


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

    kept = run(cluster, "stamped", "--redirects=3", "--log-timestamps=files", "--log-rotate=64KiB:3")
    assert kept.stdout == b""
    stamped = files_of(cluster.directory / "stamped")
    assert {path: re.sub(rb"^" + STAMP, b"", text, flags=re.MULTILINE) for path, text in stamped.items()} == plain
    assert stamped != plain


def test_what_workers_print_alike_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fold, "WINDOW_S", 600.0)  # however busy the machine is
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    for name, option in (("plain", "--redirects=3"), ("folded", "--log-prefix")):
        spec = spec_of([option, "--nproc-per-node=4", f"--log-dir={tmp_path / name}", str(SCRIPT)])
        assert round_of(spec, Output(spec, LogFiles(spec, "")), 0) == []
    plain = files_of(tmp_path / "plain")
    assert files_of(tmp_path / "folded") == plain
    out, err = capfd.readouterr()
    for stream, text in (("stdout", out), ("stderr", err)):
        for rank, lines in unfolded(text).items():
            assert lines == lines_of(plain[f"{rank}/{stream}.log"]), "each worker's lines, in their order"
    assert err.splitlines() == [f"[ranks 0-3] warning {line}" for line in range(200)]
    assert [line for line in out.splitlines() if "alike" in line] == [f"[ranks 0-3] alike {n}" for n in range(200)]
    for rank in range(4):
        assert out.count(f"host:{rank} of {rank} alone\n") == len([n for n in range(200) if n % 7 == rank])
    assert out.endswith("[ranks 0-3] half of a line\n")


def test_screen_that_stands_still_holds_up_no_worker(cluster: Cluster) -> None:
    reader, writer = os.pipe()
    done = cluster.directory / "done"
    script = cluster.directory / "floods.py"
    script.write_text(
        f"import os\nfor n in range(20000): os.write(1, b'line %d\\n' % n)\nopen({str(done)!r}, 'a').close()"
    )
    options = ["--log-prefix", f"--log-dir={cluster.directory / 'logs'}", "--nproc-per-node=2", "--log-rotate=64KiB:9"]
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
        parts = [Path(path).read_bytes() for path in all_of(str(attempt / rank / "stdout.log"))]
        assert len(parts) > 2
        assert b"".join(parts) == whole
        assert all(part.endswith(b"\n") and len(part) < 66_000 for part in parts)


def test_flood_is_shown_in_part_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("".join(f"line {number}\n" for number in range(500_000)))
    view = Plain(Console("stdout"), {0: "host:0 "}, lambda lines: [("", line) for line in lines])
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
    view = Plain(Console("stdout"), {0: ""}, lambda lines: [("", line) for line in lines])
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


def test_every_line_is_shown_of_a_file_that_is_rotated_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "stdout.log")
    copy = LogCopy(str(tmp_path / "pipe"), path, size=64 << 10, files=100, stamps=False)
    view = Plain(Console("stdout"), {0: ""}, lambda lines: [("", line) for line in lines])
    tail = Tail(path, 0, view, files=100)
    whole = b"".join(b"line %d\n" % number for number in range(100_000))
    with open(copy.pipe, "wb", buffering=0) as pipe:
        for place in range(0, len(whole), 10_000):
            pipe.write(whole[place : place + 10_000])
            tail.pump(lambda: None)
    copy.opened()
    assert copy.settle(float("inf"))
    tail.stop_here()
    while not tail.is_done:
        tail.pump(lambda: None)
    tail.close()
    assert capsys.readouterr().out.encode() == whole
    assert len(all_of(path)) > 10


def test_full_disk_holds_up_no_worker_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "stdout.log").symlink_to("/dev/full")
    copy = LogCopy(str(tmp_path / "pipe"), str(tmp_path / "stdout.log"), size=0, files=0, stamps=False)
    with open(copy.pipe, "wb", buffering=0) as pipe:
        pipe.writelines(b"x" * 10_000 for _ in range(400))
    copy.opened()
    assert copy.settle(float("inf"))
    eventually(lambda: "lacks 4000000 bytes" in caplog.text, lambda: caplog.text)
    assert caplog.text.count("No space left on device") == 1


def test_disk_that_hangs_harms_no_file_of_the_next_round(tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    class Hangs(LogCopy):
        def _write(self, data: bytes) -> None:
            hangs.set()
            goes_on.wait()
            super()._write(data)

    directory = tmp_path / "attempt_0"
    directory.mkdir()
    copy = Hangs(str(tmp_path / "pipe"), str(directory / "stdout.log"), size=100, files=3, stamps=True)
    with open(copy.pipe, "wb") as pipe:
        pipe.write(b"of this round\n" * 20)
    copy.opened()
    hangs.wait()
    assert not copy.settle(0.0)
    directory.rename(tmp_path / "attempt_0.round_1")
    directory.mkdir()
    (directory / "stdout.log").write_text("of the next round\n")
    goes_on.set()
    copy._thread.join()
    assert [each.read_text() for each in directory.iterdir()] == ["of the next round\n"]
    assert (tmp_path / "attempt_0.round_1/stdout.log").read_text().count("of this round\n") == 20


def test_oldest_files_make_room(tmp_path: Path) -> None:
    path = str(tmp_path / "stdout.log")
    copy = LogCopy(str(tmp_path / "pipe"), path, size=64 << 10, files=3, stamps=False)
    with open(copy.pipe, "wb") as pipe:
        pipe.writelines(b"line %d\n" % number for number in range(60_000))
    copy.opened()
    assert copy.settle(float("inf"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["stdout.1.log", "stdout.2.log", "stdout.log"]
    kept = b"".join(Path(each).read_bytes() for each in all_of(path))
    assert kept.endswith(b"line 59999\n")
    assert kept.startswith(b"line ")
