"""A run id or a host is part of the names of files, and leads to no other directory."""

from __future__ import annotations

from pathlib import Path

from kits.launcher.starts_workers import spec_of
from msgspec.structs import replace

from rdzv_launcher.run import file_names
from rdzv_launcher.run.workers.output.log_files import LogFiles

NAMES = ["../../away", "/etc/x", "..", "a\nb\x1b[2J", "\udcff", "é" * 500, "a\0b", ""]


def test_a_name_is_one_part_of_a_path(tmp_path: Path) -> None:
    for made in (how(name) for name in NAMES for how in (file_names.word, file_names.component)):
        path = tmp_path / f"{made}_x"
        path.touch()
        assert path.resolve().parent == tmp_path.resolve()
        assert made.isprintable()


def test_what_torchrun_would_call_it_is_kept() -> None:
    for name in ("none", "job 1", "team:job@2", "größe"):
        assert file_names.component(name) == name


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
