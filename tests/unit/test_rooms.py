"""ARCHITECTURE.md shows the house as it is: what it names is there, and what is there has its place in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PLACES = [ROOT, ROOT / "src/rdzv_plugins", ROOT / "src/launcher/rdzv_launcher", ROOT / "src"]
PACKAGES = sorted(
    path.parent
    for top in ("src/rdzv_plugins", "src/launcher/rdzv_launcher")
    for path in (ROOT / top).rglob("__init__.py")
    if path.parents[1] != ROOT / "src" and path.parents[1] != ROOT / "src/launcher" and "skeleton" not in path.parts
)
"""The rooms, and the rooms within."""


def places_of(named: str) -> list[Path]:
    """Where a name with a folder in it may lie; ``launcher/`` stands for the package."""
    return [place / named.removeprefix("launcher/") for place in PLACES] + [ROOT / "src" / named]


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "tutorial"], ids=lambda path: path.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:src/)?(?:[\w-]+/)+[\w.-]+\.py)`", page.read_text())
    missing = [each for each in named if not any(place.is_file() for place in places_of(each))]
    assert not missing


def test_folders_of_the_reading_order_are_there() -> None:
    order = PAGE.partition("## Reading order\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`((?:[\w-]+/)+)`", order))
    assert {"host/", "elastic/leading/", "launcher/run/fence/"} <= named
    # folders of native/ are those of its own page of files; what a room has within is named after it
    within = {"skeleton/", "bench/"}
    assert [each for each in sorted(named - within) if not any(place.is_dir() for place in places_of(each))] == []


def rooms() -> set[str]:
    """What the table of the rooms names."""
    table = PAGE.partition("| room | in one sentence |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table
    return {each.removeprefix("launcher/").rstrip("/") for row in table.splitlines() for each in cells(row)}


def cells(row: str) -> list[str]:
    return re.findall(r"`([\w/]+/)`", row.split("|")[1])


def test_every_room_is_in_the_table() -> None:
    top = {path.name for path in PACKAGES if path.parent in PLACES}
    assert rooms() == top


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_room_says_what_it_is_for(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert text
    assert text.splitlines()[0].endswith((".", ":"))
