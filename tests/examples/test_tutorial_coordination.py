"""docs/tutorial/write-a-coordination-backend.md, worked through: it writes examples/rdzv-http."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.examples.tutorial_kit import NOT_OF_A_PAGE, ROOT, Shell, do, environment, files, read_page, write

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
EXAMPLE = ROOT / "examples/rdzv-http"
PAGE = read_page(ROOT / "docs/tutorial/write-a-coordination-backend.md")
PARTS = list(dict.fromkeys(block.heading for block in PAGE))
MOST_LINES = 250
BACKEND = ("__init__.py", "client.py")
"""The rest is the server, and what the tests have to know of it."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Path]]:
    """A shell in an environment where this project is installed, and the directory in which it began."""
    env = environment(tmp_path_factory.mktemp("coordination") / "env")
    begin = env.root.parent / "reader"
    begin.mkdir()
    with Shell(env.root, begin) as shell:
        yield shell, begin
    env.close()


def test_the_files_of_the_page_are_those_of_the_example(tmp_path: Path) -> None:
    for block in PAGE:
        if block.file:
            write(block, tmp_path)
    assert files(tmp_path) - NOT_OF_A_PAGE == files(EXAMPLE) - NOT_OF_A_PAGE
    for file in files(tmp_path) - NOT_OF_A_PAGE:
        assert (tmp_path / file).read_text() == (EXAMPLE / file).read_text(), file


def test_the_backend_is_as_short_as_the_kit_promises() -> None:
    lines = sum(len((EXAMPLE / "src/rdzv_http" / name).read_text().splitlines()) for name in BACKEND)
    assert lines <= MOST_LINES


@pytest.mark.parametrize("part", PARTS)
def test_the_page_shows_what_is_shown(part: str, reader: tuple[Shell, Path]) -> None:
    """In the order of the page: each part goes on where the one before has ended."""
    shell, begin = reader
    for block in PAGE:
        if block.heading == part:
            do(block, shell, begin / "rdzv-http")
            if (begin / "rdzv-http").exists():
                shutil.copy(EXAMPLE / "LICENSE", begin / "rdzv-http")
