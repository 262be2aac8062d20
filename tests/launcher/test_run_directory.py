"""An agent's files: its temporary directory, names in paths, the logs of its workers, and what the system refuses."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.harness import Cluster
from kits.launcher.specs import spec_of
from msgspec.structs import replace

from rdzv_launcher.console import report
from rdzv_launcher.run import machine, names
from rdzv_launcher.run.run_directory import RunDirectory, remove
from rdzv_launcher.run.stacks.node import NodeSnapshot, NodeStacks
from rdzv_launcher.run.workers.output.log_files import INDEX, Index, LogFiles, WorkerRecord
from rdzv_launcher.tools import cli
from rdzv_plugins.errors import LimitTooLow


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def refusing(number: int, path: str | None = None):  # type: ignore[no-untyped-def]
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), path)

    return refuse


def test_without_locks_it_is_used_and_no_other_agent_removes_it(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK))
    with RunDirectory() as ours:
        with RunDirectory() as other:
            assert os.path.isdir(ours.path)
            assert other.path != ours.path
        monkeypatch.undo()
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        with RunDirectory():
            assert os.path.isdir(ours.path)
    assert not os.listdir(parent)


def test_it_is_made_again_locked_and_for_this_user_alone(parent: Path) -> None:
    with RunDirectory() as ours:
        ours.ensure()  # nothing to do
        shutil.rmtree(ours.path)
        ours.ensure()
        assert stat.S_IMODE(os.stat(ours.path).st_mode) == 0o700
        with RunDirectory():
            assert os.path.isdir(ours.path)
    assert not os.listdir(parent)


def test_one_that_is_somebody_elses_by_now_is_not_used(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDirectory() as ours:
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        with pytest.raises(LimitTooLow, match="another user"):
            ours.ensure()


def test_the_umask_does_not_keep_the_agent_out(parent: Path) -> None:
    before = os.umask(0o277)
    try:
        with RunDirectory() as ours:
            assert stat.S_IMODE(os.stat(ours.path).st_mode) == 0o700
            stacks = NodeStacks(lambda: NodeSnapshot("here", 1), ours.path, on_request=True)
            assert stat.S_IMODE(os.stat(stacks.own).st_mode) == 0o700
    finally:
        os.umask(before)


def test_what_the_system_refuses_is_never_an_internal_error(capsys: pytest.CaptureFixture[str]) -> None:
    for error, named in (
        (OSError(errno.ENOSPC, "No space left on device", "/there"), "/there"),
        (OSError(errno.ENOSYS, "Function not implemented"), "not implemented"),
        (RuntimeError("can't start new thread"), ""),
        (MemoryError(), ""),
    ):
        assert report("rdzv-run", error, verbose=False) == LimitTooLow.exit_code
        assert named in capsys.readouterr().err.partition("rdzv-run: error: ")[2]


def test_a_machine_without_proc_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", refusing(errno.ENOENT, "/proc/self/fd"))
    with pytest.raises(LimitTooLow, match="/proc"):
        machine.require_files(1)


def launched(directory: Path, program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """It makes its directory in ``directory``/temporary."""
    (directory / "program.py").write_text(program)
    (directory / "temporary").mkdir()
    command = [sys.executable, "-m", "rdzv_launcher.run", *flags, "program.py"]
    environment = os.environ | {"TMPDIR": str(directory / "temporary")}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)


LOUD = "import sys; sys.stdout.write('a line that is long enough to fill the screen in the end\\n' * 60000)"


@pytest.mark.parametrize(
    ("flag", "program", "code"),
    [
        ("--log-prefix", "print('well')", 0),
        ("--log-prefix", "raise SystemExit(3)", 3),
        pytest.param("--log-prefix", LOUD, 0, marks=pytest.mark.thorough),
        pytest.param("--redirects=3", "print('well')", 0, marks=pytest.mark.thorough),
    ],
    ids=["well", "failed", "loud", "not shown"],
)
def test_logs_in_a_temporary_directory_are_named_or_removed(tmp_path: Path, flag: str, program: str, code: int) -> None:
    """Removed if they hold nothing that was not shown, and the job has ended well."""
    done = launched(tmp_path, program, flag)
    assert done.returncode == code, done.stderr
    found = list((tmp_path / "temporary").glob("rdzv-run-*/logs"))
    if (flag, program) == ("--log-prefix", "print('well')"):
        assert not os.listdir(tmp_path / "temporary")
        assert "logs" not in done.stderr
    else:
        assert len(found) == 1
        assert [line for line in done.stderr.splitlines() if str(found[0]) in line and "left out" not in line]
        assert list(found[0].rglob("stdout.log"))


CLEANER = """
import glob, os, shutil, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    for each in glob.glob(os.environ["TMPDIR"] + "/rdzv-run-*"):
        shutil.rmtree(each)
    sys.exit(1)
print("again", os.path.isdir(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])), file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("flags", [["--redirects=1"], ["--rdzv-backend=tiered", "--rdzv-conf=worker_transport=unix"]])
def test_workers_are_restarted_after_a_cleaner_has_removed_the_directory(tmp_path: Path, flags: list[str]) -> None:
    done = launched(tmp_path, CLEANER, "--max-restarts=1", *flags)
    assert done.returncode == 3, done.stderr  # the second time, and not by an error of ours
    assert "again True" in done.stderr
    if "--redirects=1" not in flags:
        assert not os.listdir(tmp_path / "temporary"), "the new directory is removed in the end, too"


NAMES = ["../../away", "/etc/x", "..", "a\nb\x1b[2J", "\udcff", "é" * 500, "a\0b", ""]


def test_a_name_is_one_part_of_a_path(tmp_path: Path) -> None:
    for made in (how(name) for name in NAMES for how in (names.word, names.component)):
        path = tmp_path / f"{made}_x"
        path.touch()
        assert path.resolve().parent == tmp_path.resolve()
        assert made.isprintable()


def test_what_torchrun_would_call_it_is_kept() -> None:
    for name in ("none", "job 1", "team:job@2", "größe"):
        assert names.component(name) == name


def test_the_workers_logs_are_where_they_are_asked_to_be(tmp_path: Path) -> None:
    """The flag is refused a slash; what a scheduler's plug-in fills in is not looked at."""
    logs = tmp_path / "some" / "logs"
    script = tmp_path / "train.py"
    script.touch()
    spec = spec_of(["--redirects=3", f"--log-dir={logs}", str(script)])
    spec = replace(spec, run_id="../../away")
    files = LogFiles(spec, "").begin({0: {"TORCHELASTIC_RESTART_COUNT": "0"}})
    assert Path(files.stdout.paths[0]).is_relative_to(logs)
    assert [each.name for each in tmp_path.iterdir()] in (["some", "train.py"], ["train.py", "some"])
    assert len(list(logs.iterdir())) == 1


def test_a_directory_for_temporary_files_keeps_the_index_of_logs_that_stay(tmp_path: Path) -> None:
    for name, log in (("with", "job/attempt_0/0/stdout.log"), ("without", "job/attempt_0/0/error.json")):
        (tmp_path / name / log).parent.mkdir(parents=True)
        (tmp_path / name / log).touch()
        (tmp_path / name / "job/index.jsonl").touch()
        remove(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["with"]
    assert (tmp_path / "with/job/index.jsonl").exists()


def test_logs_of_a_job(cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Of one that has failed once, runs on, and loses its agent: ``rdzv logs`` of its directory."""
    logs = cluster.directory / "logs"

    def rdzv(*options: str, code: int = 0) -> str:
        capfdbinary.readouterr()
        assert cli.main(["logs", str(logs), *options]) == code
        out, err = capfdbinary.readouterr()
        return (err if code == 2 else out).decode(errors="surrogateescape")

    agent = cluster.run("fails_once.py", nproc=4, restarts=1, options=["--redirects=3", f"--log-dir={logs}"])
    eventually(lambda: all((cluster.directory / f"up{rank}").exists() for rank in range(4)), lambda: agent.text)
    (index,) = logs.glob("*/index.jsonl")
    eventually(lambda: len(index.read_text().splitlines()) == 12, index.read_text)
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    events = [(each["event"], each["round"]) for each in lines]
    assert events == [("started", 1)] * 4 + [("ended", 1)] * 4 + [("started", 2)] * 4
    ended = {each["rank"]: (each["exit_code"], each["stopped"]) for each in lines if each["event"] == "ended"}
    assert ended == {0: (-15, True), 1: (-15, True), 2: (3, False), 3: (-15, True)}

    assert rdzv().count("stdout.log (15 bytes)") == 8
    failed = rdzv("--failed")
    assert failed.count("rank 2 on ") == 1
    assert failed.endswith("  | \\x00\ufffd binary\n  | no end\n")
    assert "rank 1 on" not in failed
    words = rdzv("--tail=1", "--stream=stdout")
    assert [line for line in words.splitlines() if "|" in line] == [f"  | round 2 rank {rank}" for rank in range(4)]
    raw = (index.parent / "attempt_0/2/stderr.log").read_bytes().decode(errors="surrogateescape")
    assert rdzv("--rank=2", "--failed", "--stream=stderr") == raw == "\x00\udcff binary\nno end"
    assert rdzv("--rank=3") == f"==> {index.parent}/attempt_1/3/stdout.log <==\nround 2 rank 3\n"
    (data,) = json.loads(rdzv("--rank=2", "--round=1", "--json"))
    assert (data["worker"]["exit_code"], data["failed"]) == (3, True)
    for wrong in (["--rank=17"], ["--round=5"], ["--tail=0"], ["--failed", "--round=1"]):
        rdzv(*wrong, code=2)

    cluster.kill(agent.pid)
    agent.wait()
    with index.open("ab") as file:
        file.write(b"nonsense\n")
    assert rdzv("--tail=1", "--stream=stdout") == words
    index.write_text("".join(json.dumps(each) + "\n" for each in lines if each["round"] == 2))
    rdzv("--failed", code=1)
    stacks = index.parent / "stacks-here-1-1.log"
    stacks.write_text("the job hangs\n2 workers on 1 node: rank 1 is at a.py:3 in f\n\nmore\n")
    hung = rdzv("--failed").splitlines()
    assert hung[1:] == [f"the job hangs: {stacks}", "  | 2 workers on 1 node: rank 1 is at a.py:3 in f"]
    (cluster.directory / "over").touch()


def test_output_that_went_to_no_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = Index()
    workers = [
        WorkerRecord("job", 1, 29501, each, each, "host", -1, None, path) for each, path in ((0, None), (1, "x"))
    ]
    index.begin(str(tmp_path / INDEX), workers, None)
    index.started({0: 100, 1: 101})
    index.flush()
    for rank, code in ((0, 2), (1, 0)):
        assert cli.main(["logs", str(tmp_path), f"--rank={rank}"]) == code
        assert f"rank {rank}" in capsys.readouterr().err


REFUSES = """
import ctypes, struct, sys
from rdzv_launcher.run.cli import main

number, error = map(int, sys.argv[1:])
code = [(0x20, 0, 0, 0), (0x15, 1, 0, number), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | error)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))

class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

program, libc = Program(len(code), ctypes.cast(text, ctypes.c_void_p)), ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
sys.argv = ["rdzv-run", "--no-python", "echo", "hello"]
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
sys.exit(main())
"""
"""A launch in which the kernel answers a system call with an error, in all that it starts, too. Of Linux on x86-64."""


def numbers(text: str) -> dict[str, int]:
    """Of system calls, by name."""
    return {name: int(number) for name, number in (each.split() for each in text.split(","))}


# Left out are calls that cannot fail (getpid), those without which Python imports nothing (read, mmap, getdents64),
# and write, poll, epoll_wait, accept4 and wait4, without which a program can neither say anything nor wait.
DONE_WITHOUT = numbers("""
chmod 90, flock 73, memfd_create 319, mknodat 259, pidfd_open 434, prctl 157, prlimit64 302, readlink 89,
rename 82, rmdir 84, unlinkat 263
""")
NEEDED = numbers("""
bind 49, clock_nanosleep 230, clone 56, clone3 435, connect 42, dup2 33, epoll_create1 291, epoll_ctl 233,
eventfd2 290, fcntl 72, ftruncate 77, getpeername 52, getsockname 51, getsockopt 55, ioctl 16, listen 50,
mkdir 83, pipe2 293, recvfrom 45, recvmsg 47, sendto 44, setsid 112, setsockopt 54, socket 41, socketpair 53,
uname 63, unlink 87, waitid 247
""")
"""Some of these, too, may be done without on another kernel or C library: then the job runs."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""As Lustre, NFS and FUSE answer flock."""


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="these are the numbers of x86-64")
def test_what_is_refused_by_the_system_is_done_without_or_said_in_a_sentence() -> None:
    """What an agent and its supervisor ask for at their start, refused one by one.

    Never an internal error: nobody can mend a sandbox, a file system or a limit by reporting it to us.
    """
    calls = DONE_WITHOUT | NEEDED
    for name, error in [*((name, errno.EPERM) for name in calls), *(("flock", each) for each in NO_LOCKS)]:
        command = [sys.executable, "-c", REFUSES, str(calls[name]), str(error)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        assert "Traceback" not in done.stdout, name
        assert done.returncode in ((0,) if name in DONE_WITHOUT else (0, 2, 68, 69, 71)), (name, done.stdout)
        assert done.returncode or "hello" in done.stdout.splitlines(), name
