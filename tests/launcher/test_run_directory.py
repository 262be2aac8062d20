"""An agent's directory for temporary files: where there are no locks, under any umask, and when a cleaner was there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rdzv_launcher.console import report
from rdzv_launcher.run import limits
from rdzv_launcher.run.monitor import WorkerMonitor
from rdzv_launcher.run.run_directory import RunDirectory
from rdzv_launcher.run.stacks.node import NodeStacks
from rdzv_launcher.run.stacks.workers import Node
from rdzv_plugins.errors import LimitTooLow
from rdzv_plugins.shared_numbers import SharedNumbers, open_numbers


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
            stacks = NodeStacks(lambda: Node("here", 1, "run"), ours.path)
            assert stat.S_IMODE(os.stat(stacks.own).st_mode) == 0o700
    finally:
        os.umask(before)


def test_the_directory_of_stacks_is_made_again_for_new_workers(tmp_path: Path) -> None:
    stacks = NodeStacks(lambda: Node("here", 1, "run"), str(tmp_path / "own"))
    shutil.rmtree(tmp_path / "own")
    assert stacks.environment
    assert stacks.own.is_dir()


@pytest.mark.parametrize("what", ["no directory", "no pipes"])
def test_stderr_is_read_where_there_is_no_named_pipe(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "no pipes":
        monkeypatch.setattr(os, "mkfifo", refusing(errno.EPERM))
        directory = tmp_path / "pipes"
    else:
        (tmp_path / "file").touch()
        directory = tmp_path / "file" / "pipes"
    monitor = WorkerMonitor(directory)
    try:
        path = monitor.attach({0: os.devnull})[0]
        with open(path, "w") as worker:
            worker.write("a last word\n")
        assert monitor.tail(0) == ("a last word",)
    finally:
        monitor.close()


def test_numbers_are_shared_where_memfd_is_forbidden(monkeypatch: pytest.MonkeyPatch, parent: Path) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EACCES))
    numbers = SharedNumbers("numbers", 16)
    numbers[1] = 7
    shared = open_numbers(numbers.path, 16)
    assert shared is not None
    assert shared[1] == 7
    numbers.close()
    assert not os.listdir(parent)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EPERM, "Operation not permitted", "/there"),
        OSError(errno.ENOSYS, "Function not implemented"),
        OSError(errno.ENOSPC, "No space left on device", "/there"),
        RuntimeError("can't start new thread"),
        MemoryError(),
    ],
    ids=lambda error: f"{type(error).__name__} {error.args[:1]}",
)
def test_what_the_system_refuses_is_never_an_internal_error(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("rdzv-run", error, verbose=False) == LimitTooLow.exit_code
    text = capsys.readouterr().err
    assert text.startswith("rdzv-run: error: ")
    assert "internal" not in text
    if isinstance(error, OSError):
        assert error.strerror in text
        assert (error.filename or "") in text


def test_another_error_stays_internal(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("rdzv-run", RuntimeError("a fault"), verbose=False) == 70
    assert "internal error" in capsys.readouterr().err


def test_a_machine_without_proc_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", refusing(errno.ENOENT, "/proc/self/fd"))
    with pytest.raises(LimitTooLow, match="/proc"):
        limits.require_files(1)


def test_unknown_limits_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", refusing(errno.EPERM))
    assert "not known" in limits.require_files(1)
    assert "not known" in limits.require_processes(1)


LOUD = "import sys; sys.stdout.write('a line that is long enough to fill the screen in the end\\n' * 60000)"


@pytest.mark.parametrize(
    ("flags", "program", "left"),
    [
        (["--log-prefix"], "print('well')", "nothing"),
        (["--redirects=3"], "print('well')", "named"),
        (["--log-prefix"], LOUD, "named"),
        (["--log-prefix"], "raise SystemExit(3)", "named"),
    ],
)
def test_logs_in_a_temporary_directory_are_named_or_removed(
    tmp_path: Path, flags: list[str], program: str, left: str
) -> None:
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "rdzv_launcher.run", *flags, "program.py"]
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == (3 if "Exit" in program else 0), done.stderr
    found = list((tmp_path / "temporary").glob("rdzv-run-*/logs"))
    if left == "nothing":
        assert not os.listdir(tmp_path / "temporary")
        assert "logs" not in done.stderr
    else:
        assert len(found) == 1
        assert [line for line in done.stderr.splitlines() if line.count(str(found[0])) and "left out" not in line]
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
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--redirects=1", "--log-timestamps=files"],
        ["--rdzv-backend=tiered", "--rdzv-conf=worker_transport=unix"],
    ],
)
def test_workers_are_restarted_after_a_cleaner_has_removed_the_directory(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "program.py").write_text(CLEANER)
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "rdzv_launcher.run", "--max-restarts=1", *flags, "program.py"]
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr  # the second time, and not by an error of ours
    assert "again True" in done.stderr
    if "--log-prefix" not in flags and "--redirects=1" not in flags:
        assert not os.listdir(tmp_path / "temporary"), "the new directory is removed in the end, too"
