"""What a change asks of CI beyond the gate."""

from __future__ import annotations

import subprocess
import sys
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


def test_what_the_gate_holds_asks_for_nothing_more() -> None:
    assert further(["tests/simulation/world.py", "src/rdzv_plugins/elastic/link.py"]) == []


@pytest.mark.parametrize(("earlier", "asked"), [([], None), (["2026-01-01T10:00"], []), (["2026-01-02T08:00"], None)])
def test_what_counts_as_changed_where_there_is_no_other_branch(
    tmp_path: Path, earlier: list[str], asked: list[str] | None
) -> None:
    """All that was committed within half a day; everything if no commit is older than that."""
    for when in [*earlier, "2026-01-02T10:00"]:
        who = {f"GIT_{whose}_{what}": "a" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        date = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        subprocess.run(
            "git init -q && git commit -q --allow-empty -m a", shell=True, cwd=tmp_path, check=True, env=who | date
        )
    script = [sys.executable, ROOT / "tests/further.py"]
    said = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == (further(None) if asked is None else asked or [""])


def test_the_places_exist() -> None:
    """A folder that has moved would otherwise ask for nothing, unseen."""
    named = {place for by in (TARGETS, THOROUGH) for places in by.values() for place in places}
    assert [place for place in named if not (ROOT / place).exists()] == []
