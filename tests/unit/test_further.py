"""What a change asks of CI beyond the gate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from further import TARGETS, THOROUGH, further
from kits import ROOT


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("native/src/loop.cpp", "sanitize"),
        ("native/src/loop.cpp", "thorough THOROUGH='tests/wire'"),
        ("src/rdzv_plugins/testing/plugin.py", "thorough THOROUGH='tests/conformance'"),
        ("src/rdzv_plugins/schedulers/slurm.py", "test-slurm"),
        ("docs/index.md", "thorough THOROUGH='tests/examples'"),
    ],
)
def test_a_changed_path_asks_for_its_tests(path: str, target: str) -> None:
    assert target in further(["ARCHITECTURE.md", path])


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs git in a repository of its own, whose commits are of the time that is given."""
    who = {f"GIT_{whose}_{what}": "a" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def run(*command: str, at: str = "2026-01-02T10:00", folder: str = ".") -> None:
        date = {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        subprocess.run(["git", *command], cwd=tmp_path / folder, check=True, env=who | date, capture_output=True)

    run("init", "-b", "main")
    return run


def commit(git: Callable[..., None], repository: Path, *paths: str, at: str = "2026-01-02T10:00") -> None:
    for path in paths:
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text("")
    git("add", ".", folder=str(repository))
    git("commit", "--allow-empty", "-m", "a", at=at, folder=str(repository))


def asked(repository: Path) -> list[str]:
    """What the script says in that repository."""
    script = [sys.executable, ROOT / "tests/further.py"]
    said = subprocess.run(script, cwd=repository, capture_output=True, text=True, check=True).stdout
    return said.splitlines() if said.strip() else []


def test_on_a_branch_it_is_what_was_changed_there(git: Callable[..., None], tmp_path: Path) -> None:
    """By whatever name, moved or not committed yet; in a clone that does not know where it began, everything."""
    commit(git, tmp_path, "src/rdzv_plugins/schedulers/a.py", at="2026-01-01T10:00")
    clone = tmp_path / "clone"
    git("clone", ".", str(clone))
    assert asked(clone) == further(None), "it is the main branch itself, without an earlier commit"
    commit(git, tmp_path, "native/of_others.cpp")
    git("fetch", folder="clone")
    git("mv", "src/rdzv_plugins/schedulers/a.py", "src/b.py", folder="clone")
    commit(git, clone, at="2026-01-01T12:00")
    commit(git, clone)
    assert asked(clone) == ["test-slurm"]
    (clone / "docs").mkdir()
    (clone / "docs/é.md").write_text("")
    assert asked(clone) == ["test-slurm", "thorough THOROUGH='tests/examples'"]

    git("clone", "--depth=2", f"file://{clone}", "shallow")
    git("remote", "add", "upstream", f"file://{tmp_path}", folder="shallow")
    git("fetch", "--depth=1", "upstream", "main", folder="shallow")
    assert asked(tmp_path / "shallow") == further(None)


def test_the_places_exist() -> None:
    """A folder that has moved would otherwise ask for nothing, unseen."""
    named = {place for by in (TARGETS, THOROUGH) for places in by.values() for place in places}
    assert [place for place in named if not (ROOT / place).exists()] == []
