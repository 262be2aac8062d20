"""What is shown of the workers' output: whole lines, however they come, in files and on the screen."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from kits import ROOT
from kits.eventually import eventually
from kits.launcher.harness import BIN, WORKERS, AgentProcess, Cluster
from kits.launcher.specs import spec_of

from rdzv_launcher.run.workers.output.growing_file import all_of
from rdzv_launcher.run.workers.output.log_files import LogFiles
from rdzv_launcher.run.workers.output.output import WorkerOutput
from rdzv_launcher.run.workers.output.shown import LONGEST, Allowance, FilteredFile, Lines, Tail, View, show

ODD = WORKERS / "says_odd_things.py"
Ended = subprocess.CompletedProcess[bytes]


def run(cluster: Cluster, *options: object, stdout: int | IO[bytes] = subprocess.PIPE) -> Ended:
    """``rdzv-run`` to its end, which is to be a good one."""
    command = [BIN / "rdzv-run", *map(str, options)]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=cluster.env, cwd=cluster.directory)
    assert done.returncode == 0, done.stderr
    return done


def files_of(directory: Path) -> dict[str, bytes]:
    """The log files of a job's only attempt, by their paths in it."""
    (attempt,) = directory.glob("*/attempt_0")
    return {str(path.relative_to(attempt)): path.read_bytes() for path in attempt.rglob("*.log")}


def lines_of(file: bytes) -> list[str]:
    """As they are shown."""
    text = file.decode(errors="replace")
    return io.IncrementalNewlineDecoder(None, True).decode(text).removesuffix("\n").split("\n")


def pump(tail: Tail) -> None:
    """Show all that is there, as of a worker that has ended."""
    tail.stop_here()
    while not tail.is_done:
        tail.pump(lambda: None)
    tail.close()


def numbered(begin: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(begin, end))


FLOODS = """
import os
for each in range(50):
    os.write(1, b"".join(b"line %d\\n" % number for number in range(1000 * each, 1000 * each + 1000)))
"""


@pytest.fixture
def floods(tmp_path: Path) -> Path:
    """A script that writes 50,000 lines, and then the empty file ``done``."""
    script = tmp_path / "floods.py"
    script.write_text(f"{FLOODS}\nopen({str(tmp_path / 'done')!r}, 'a').close()\n")
    return script


def test_files_are_those_of_a_plain_run_whatever_is_shown(cluster: Cluster) -> None:
    logs = cluster.directory
    run(cluster, "--nproc-per-node=4", f"--log-dir={logs / 'plain'}", "--redirects=3", ODD)
    plain = files_of(logs / "plain")
    assert len(plain) == 8
    cluster.env |= {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${host}/${rank}/${local_rank}>"}
    options = ("--log-prefix", "--ranks-filter=1-2", "--log-timestamps=screen", "--no-fold")
    shown = run(cluster, "--nproc-per-node=4", f"--log-dir={logs / 'shown'}", *options, ODD)
    assert files_of(logs / "shown") == plain
    stamp, host = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", os.uname().nodename
    for rank in range(4):
        start = re.compile(b"^" + stamp + re.escape(f"<{host}/{rank}/{rank}>".encode()), re.MULTILINE)
        for stream, text in (("stdout", shown.stdout), ("stderr", shown.stderr)):
            lines = [line for line in text.split(b"\n") if start.match(line)]
            own = lines_of(plain[f"{rank}/{stream}.log"])
            assert [start.sub(b"", line).decode() for line in lines] == (own if rank in (1, 2) else [])


def test_what_workers_print_alike_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of files that are there: when lines of living workers are alike is a matter of moments."""
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    spec = spec_of(["--log-prefix", "--nproc-per-node=4", f"--log-dir={tmp_path}", str(ODD)])
    variables = {rank: {"RANK": str(rank)} for rank in range(4)}
    files = LogFiles(spec, "").begin(variables)
    for rank, own in variables.items():
        with open(files.stdout.paths[rank], "wb") as out, open(files.stderr.paths[rank], "wb") as err:
            subprocess.run([sys.executable, ODD], env=own, stdout=out, stderr=err, check=True)
    assert show(files, spec, variables, {rank: rank for rank in range(4)}).stop(60, 60)
    out, err = capsys.readouterr()
    assert err.splitlines() == [f"[ranks 0-3] warning {line}" for line in range(200)]
    assert [line for line in out.splitlines() if "alike" in line] == [f"[ranks 0-3] alike {n}" for n in range(200)]
    for rank in range(4):
        assert out.count(f"host:{rank} of {rank} alone\n") == len([n for n in range(200) if n % 7 == rank])
    assert "half of a line\n" in out


def test_screen_that_stands_still_holds_up_no_worker(cluster: Cluster, floods: Path) -> None:
    reader, writer = os.pipe()
    options = ["--log-prefix", f"--log-dir={cluster.directory / 'logs'}", "--nproc-per-node=2"]
    with open(writer, "wb") as stdout:
        agent = subprocess.Popen([BIN / "rdzv-run", *options, floods], stdout=stdout, env=cluster.env)
    try:
        eventually((cluster.directory / "done").exists, lambda: "the workers do not end")
    finally:
        os.close(reader)  # whoever reads has gone: nobody waits for that either
    assert agent.wait(60) == 0
    found = files_of(cluster.directory / "logs")
    assert found["0/stdout.log"] == found["1/stdout.log"] == numbered(0, 50_000)


def test_flood_is_shown_whole_and_in_order(cluster: Cluster, floods: Path) -> None:
    expected = numbered(0, 50_000).replace(b"line", b"[default0]:line")
    assert run(cluster, "--tee=1", floods).stdout == expected


@pytest.mark.thorough
def test_standard_output_that_does_not_block_gets_every_line(tmp_path: Path) -> None:
    """As a program that shares it leaves it; its reader is slower than who writes."""
    script = "from rdzv_launcher.console import open_standard_streams as opened\nopened()\n"
    script += "for each in range(50000): print('line', each)\n"
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with subprocess.Popen([sys.executable, "-c", script], stdout=writer) as process:
        os.close(writer)
        with open(reader, "rb", buffering=0) as pipe:
            data = b"".join(iter(lambda: pipe.read(512), b""))
    assert (process.returncode, data) == (0, numbered(0, 50_000))


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
    now = 0.0
    collected = FilteredFile(str(tmp_path / "collected"), ("?",))
    view = View("stdout", {0: "a ", 1: "b "}, fold=fold)
    tails = [
        Tail(str(tmp_path / "0"), 0, view, clock=lambda: now, filtered=collected, prefix="a "),
        Tail(str(tmp_path / "1"), 1, view, clock=lambda: now),
    ]

    def shown(name: str, text: str) -> str:
        nonlocal now
        with (tmp_path / name).open("a") as file:
            file.write(text)
        for _ in range(2):
            for tail in tails:
                tail.pump(lambda: None)
            now += 1.0
        view.show(final=True)
        return capsys.readouterr().out

    for name, text, expected in (
        ("0", "begun\nname? ", "a begun\na name? "),
        ("0", "", ""),
        ("0", "Bob\nage? ", "Bob\na age? "),
        ("1", "news\n", "\nb news\n"),  # it begins a line of its own
        ("0", "42", "a 42"),
        ("1", "more", "\nb more"),
        ("0", "\n", ""),  # the end of one that is ended already takes no line
        ("1", "\n", "\n"),
        ("0", "\n", "a \n"),
        ("0", "last? ", "a last? "),
    ):
        assert shown(name, text) == expected
    for tail in tails:
        tail.close()
    view.show(final=True)
    assert capsys.readouterr().out == "\n"
    collected.close()
    assert (tmp_path / "collected").read_text() == "a name? Bob\na age? 42\na last? \n"


def test_flood_is_shown_in_part_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(numbered(0, 500_000))
    pump(Tail(str(path), 0, View("stdout", {0: "host:0 "}), allowance=Allowance(lambda: 0.0)))
    out = capsys.readouterr().out
    assert out.endswith("host:0 line 499999\n")
    assert re.search(rf"host:0 \(.*{path}.*\)\n", out)
    assert len(out) < 1 << 20


def test_steady_flood_gets_no_more_than_its_allowance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, now = tmp_path / "stdout.log", 0.0
    tail = Tail(str(path), 0, View("stdout", {0: ""}), allowance=Allowance(lambda: now))
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
    path.with_name(f"{path.name}.1").write_bytes(path.read_bytes())
    os.truncate(path, 0)


def renamed(path: Path) -> None:
    """As logrotate does it without: the writer has the old file open."""
    path.replace(path.with_name(f"{path.name}.1"))
    path.touch()


@pytest.mark.parametrize("move", [copied_and_truncated, renamed])
def test_every_line_is_shown_of_a_file_that_is_rotated_meanwhile(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], move: Callable[[Path], None]
) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(str(path), 0, View("stdout", {0: ""}))
    with open(path, "ab", buffering=0) as worker:
        worker.write(numbered(0, 2000))
        tail.pump(lambda: None)
        worker.write(numbered(2000, 4000))  # which are not read yet
        move(path)
        worker.write(numbered(4000, 5000))
    pump(tail)
    assert capsysbinary.readouterr().out == numbered(0, 5000)


def test_lines_of_a_file_that_somebody_empties_are_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("line 0\n")
    tail = Tail(str(path), 0, View("stdout", {0: ""}))
    tail.pump(lambda: None)
    path.write_text("1\n")
    pump(tail)
    first, said, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("line 0", "1")
    assert str(path) in said


def test_file_is_shown_to_where_it_was_when_the_worker_had_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stdout.log"
    tail = Tail(str(path), 0, View("stdout", {0: "[default0]:"}))
    path.write_text("mine\n")
    tail.stop_here()
    with path.open("a") as file:
        file.write("of a process left behind\n")
    pump(tail)
    assert capsys.readouterr().out == "[default0]:mine\n"


WRITES = """
import os, sys, time
for turn in (1, 2, 3):
    for number in range(30 * turn, 100):  # fewer each time: a file as long as before has not been truncated
        os.write(1, b"line %d\\n" % (100 * turn + number))
    while turn < 3 and not os.path.exists(f"{sys.argv[1]}{turn}"):
        time.sleep(0.01)
"""


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("logrotate") is None, reason="needs logrotate")
def test_logrotate_rotates_what_workers_write(cluster: Cluster) -> None:
    """The page's own configuration, while a worker writes a line after the other, and waits for the file to move."""
    script, logs = cluster.directory / "writes.py", cluster.directory / "logs"
    script.write_text(WRITES)
    page = (ROOT / "docs/guides/logs.md").read_text()
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


def test_log_directory_that_is_gone_costs_the_files_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two rounds something else takes its place; at last there is no place at all."""
    logs, instead = tmp_path / "logs", tmp_path / "instead"
    spec = spec_of([f"--log-dir={logs}", "--redirects=1", "train.py"])
    output = WorkerOutput(spec, LogFiles(spec, str(instead)))
    for taken in (logs, instead):
        log = Path(output.begin({0: {}}).stdout.paths[0])
        assert log.is_file()
        assert log.is_relative_to(taken)
        taken.rename(f"{taken}.aside")
        taken.write_text("a file")
    assert output.begin({0: {}}).stdout.paths[0] == ""
    assert output.root == os.devnull
    assert str(instead) in caplog.text


def test_a_job_whose_nodes_come_and_go_keeps_the_output_of_its_newest_rounds(tmp_path: Path) -> None:
    files = LogFiles(spec_of(["--redirects=1", f"--log-dir={tmp_path}", "train.py"]), "")
    for number in range(1, 20):
        found = files.begin({0: {"RDZV_ROUND": str(number)}})
        assert (found.round, found.moved) == (number, ("attempt_0", f"attempt_0.round_{number - 1}")) or number == 1
        Path(found.stdout.paths[0]).write_text(f"of round {number}\n")
    kept = {path.name: (path / "0/stdout.log").read_text() for path in tmp_path.glob("*/attempt_*")}
    assert kept.pop("attempt_0") == "of round 19\n"
    assert kept == {f"attempt_0.round_{number}": f"of round {number}\n" for number in range(9, 19)}


def in_shell(cluster: Cluster, command: str) -> AgentProcess:
    return cluster.start(["/bin/bash", "-c", f"{BIN}/rdzv-run {command}"])


@pytest.mark.thorough
def test_streams_that_are_gone_or_closed_do_no_harm(cluster: Cluster) -> None:
    """The exit code survives; what is printed there is lost, and no file of a worker gets such a number."""
    fails = f"{cluster.script('plain.py')} fail 7"
    gone, closed = in_shell(cluster, f"{fails} 2> >(exec 0<&-; sleep 0)"), in_shell(cluster, f"{fails} 2>&-")
    assert [gone.wait(), closed.wait()] == [7, 7]
    assert closed.text == "started rank 0\n", "and stderr is not somebody else's socket or file"
    for number, stream in enumerate(("<&-", ">&-", "<&- >&- 2>&-")):
        agent = in_shell(cluster, f"--no-python /bin/sh -c 'echo lost && : > there{number}' {stream}")
        assert agent.wait() == 0, agent.text
        assert (cluster.directory / f"there{number}").exists()


LEAVES = """
if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
  setsid sh -c ': > there; until [ -e second ]; do sleep 0.05; done; echo from the child >&2 && : > child' &
  until [ -e there ]; do sleep 0.05; done
  exit 3
fi
: > second
until [ -e child ]; do sleep 0.05; done
"""


@pytest.mark.thorough
def test_process_left_behind_by_a_worker_may_go_on_writing(cluster: Cluster) -> None:
    """As under torchrun: a logging helper outlives the restart of the worker that started it."""
    agent = cluster.start(["rdzv-run", "--max-restarts=1", "--no-python", "/bin/sh", "-c", LEAVES])
    assert agent.wait() == 0, agent.text
    assert "from the child" in agent.text


def full_pipe(blocks: bool) -> tuple[IO[bytes], int]:
    """(its end for a process's stderr, where it can be read)."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, blocks)
    return open(writing, "wb", buffering=0), reading


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", [True, False])
def test_stderr_that_nobody_reads_keeps_no_agent_from_ending(cluster: Cluster, blocks: bool) -> None:
    """By the code of its worker; and by a signal while its worker floods it."""
    stderr, reading = full_pipe(blocks)
    with stderr:
        fails = cluster.start(["rdzv-run", cluster.script("plain.py"), "fail", "7"], stderr=stderr)
        floods = cluster.start(["rdzv-run", cluster.script("plain.py"), "flood"], stderr=stderr)
        floods.wait_for("ready")
        os.kill(floods.pid, signal.SIGTERM)
        assert [fails.wait(), floods.wait()] == [7, 143]
    os.close(reading)
    assert cluster.processes() == {}


@pytest.mark.thorough
def test_worker_that_floods_a_full_stderr_is_held_up_and_loses_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """More than is kept for it: it waits, as it would without us, and goes on when somebody reads."""
    script = tmp_path / "floods.py"
    script.write_text(
        "import sys\nfor number in range(60_000):\n    sys.stderr.write(f'line {number:06} {\"-\" * 40}\\n')\n"
    )
    stderr, reading = full_pipe(blocks=True)
    with stderr:
        agent = cluster.start(["rdzv-run", script], stderr=stderr)
        eventually(lambda: cluster.workers(agent, "floods.py"), lambda: agent.text)
    text = bytearray()
    while data := os.read(reading, 1 << 16):
        text += data
    os.close(reading)
    assert agent.wait() == 0
    lines = [line for line in text.replace(b"x", b"").decode().splitlines() if line.startswith("line ")]
    assert [int(line.split()[1]) for line in lines] == list(range(60_000))
