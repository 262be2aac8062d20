"""The tutorial, worked through: what it writes is the example, what it shows is shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits import ROOT
from kits.examples.tutorial_kit import NOT_OF_A_PAGE, Shell, do, environment, files, read_page, write

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
PAGE = read_page(ROOT / "docs/plugins/tutorial.md")
EXAMPLE = "rdzv-file"
"""Which it writes."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Path]]:
    """A shell in an environment where this project is installed, and the directory in which it began."""
    env = environment(tmp_path_factory.mktemp(EXAMPLE) / "env")
    begin = env.parent / "reader"
    begin.mkdir()
    with Shell(env, begin) as shell:
        yield shell, begin


def test_the_files_of_the_page_are_those_of_the_example(tmp_path: Path) -> None:
    for block in PAGE:
        if block.file:
            write(block, tmp_path)
    theirs = ROOT / "examples" / EXAMPLE
    assert files(tmp_path) - NOT_OF_A_PAGE == files(theirs) - NOT_OF_A_PAGE
    for file in files(tmp_path) - NOT_OF_A_PAGE:
        assert (tmp_path / file).read_text() == (theirs / file).read_text(), file


def test_a_coordination_backend_is_as_short_as_the_kit_promises() -> None:
    package = ROOT / "examples/rdzv-http/src/rdzv_http"  # the rest of it is the server, and what tests have to know
    assert sum(len((package / name).read_text().splitlines()) for name in ("__init__.py", "client.py")) <= 250


@pytest.mark.parametrize("part", dict.fromkeys(block.heading for block in PAGE))
def test_the_page_shows_what_is_shown(part: str, reader: tuple[Shell, Path]) -> None:
    """In the order of the page: each part goes on where the one before has ended."""
    shell, begin = reader
    for block in PAGE:
        if block.heading == part:
            do(block, shell, begin / EXAMPLE)
            if (begin / EXAMPLE).exists():
                shutil.copy(ROOT / "examples" / EXAMPLE / "LICENSE", begin / EXAMPLE)
