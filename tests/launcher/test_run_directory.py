"""An agent's directory for temporary files: without locks, under any umask, after a cleaner; and names in paths."""

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
from kits.launcher.starts_workers import spec_of
from msgspec.structs import replace

from rdzv_launcher.console import report
from rdzv_launcher.run import limits, names
from rdzv_launcher.run.run_directory import RunDirectory
from rdzv_launcher.run.stacks.node import Node, NodeStacks
from rdzv_launcher.run.workers.output.log_files import LogFiles
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
            stacks = NodeStacks(lambda: Node("here", 1, "run"), ours.path, on_request=True)
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
        limits.require_files(1)


def launched(directory: Path, program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """It makes its directory in ``directory``/temporary."""
    (directory / "program.py").write_text(program)
    (directory / "temporary").mkdir()
    command = [sys.executable, "-m", "rdzv_launcher.run", *flags, "program.py"]
    environment = os.environ | {"TMPDIR": str(directory / "temporary")}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)


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
    done = launched(tmp_path, program, *flags)
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
        ["--redirects=1"],
        ["--rdzv-backend=tiered", "--rdzv-conf=worker_transport=unix"],
    ],
)
def test_workers_are_restarted_after_a_cleaner_has_removed_the_directory(tmp_path: Path, flags: list[str]) -> None:
    done = launched(tmp_path, CLEANER, "--max-restarts=1", *flags)
    assert done.returncode == 3, done.stderr  # the second time, and not by an error of ours
    assert "again True" in done.stderr
    if "--log-prefix" not in flags and "--redirects=1" not in flags:
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
    assert Path(files.stdouts[0]).is_relative_to(logs)
    assert [each.name for each in tmp_path.iterdir()] in (["some", "train.py"], ["train.py", "some"])
    assert len(list(logs.iterdir())) == 1
