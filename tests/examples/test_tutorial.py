"""The tutorial, worked through: what it writes is the example, what it shows is shown."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits import ROOT
from kits.examples.tutorial_kit import NOT_OF_A_PAGE, Shell, do, environment, files, read_page, write

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
PAGES = {
    "rdzv-file": read_page(ROOT / "docs/plugins/tutorial.md"),
}
"""By the example that they write."""
PARTS = [(example, part) for example, page in PAGES.items() for part in dict.fromkeys(block.heading for block in page)]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Shell, Path]]]:
    """Of each page a shell in an environment where this project is installed, and the directory in which it began."""
    found = {}
    for example in PAGES:
        env = environment(tmp_path_factory.mktemp(example) / "env")
        begin = env.parent / "reader"
        begin.mkdir()
        found[example] = Shell(env, begin).__enter__(), begin
    yield found
    for shell, _ in found.values():
        shell.__exit__(None, None, None)


@pytest.mark.parametrize("example", PAGES)
def test_the_files_of_the_page_are_those_of_the_example(example: str, tmp_path: Path) -> None:
    for block in PAGES[example]:
        if block.file:
            write(block, tmp_path)
    theirs = ROOT / "examples" / example
    assert files(tmp_path) - NOT_OF_A_PAGE == files(theirs) - NOT_OF_A_PAGE
    for file in files(tmp_path) - NOT_OF_A_PAGE:
        assert (tmp_path / file).read_text() == (theirs / file).read_text(), file


def test_a_coordination_backend_is_as_short_as_the_kit_promises() -> None:
    package = ROOT / "examples/rdzv-http/src/rdzv_http"  # the rest of it is the server, and what tests have to know
    assert sum(len((package / name).read_text().splitlines()) for name in ("__init__.py", "client.py")) <= 250


@pytest.mark.parametrize(("example", "part"), PARTS)
def test_the_page_shows_what_is_shown(example: str, part: str, readers: dict[str, tuple[Shell, Path]]) -> None:
    """In the order of the page: each part goes on where the one before has ended."""
    shell, begin = readers[example]
    for block in PAGES[example]:
        if block.heading == part:
            do(block, shell, begin / example)
            if (begin / example).exists():
                shutil.copy(ROOT / "examples" / example / "LICENSE", begin / example)
