"""docs/tutorial/write-a-backend.md, worked through: what it writes is examples/rdzv-file, what it shows is shown."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from kits.examples.tutorial_kit import (
    NOT_OF_A_PAGE,
    ROOT,
    Block,
    Shell,
    check,
    do,
    environment,
    files,
    read_page,
    write,
)

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
EXAMPLE = ROOT / "examples/rdzv-file"
PAGE = read_page(ROOT / "docs/tutorial/write-a-backend.md")
PARTS = list(dict.fromkeys(block.heading for block in PAGE))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Path]]:
    """A shell in an environment where this project is installed, and the directory in which it began."""
    env = environment(tmp_path_factory.mktemp("tutorial") / "env")
    begin = env.root.parent / "reader"
    begin.mkdir()
    with Shell(env.root, begin) as shell:
        yield shell, begin
    env.close()


def blocks(part: str) -> list[Block]:
    return [block for block in PAGE if block.heading == part]


def test_the_files_of_the_page_are_those_of_the_example(tmp_path: Path) -> None:
    for block in PAGE:
        if block.file:
            write(block, tmp_path)
    assert files(tmp_path) - NOT_OF_A_PAGE == files(EXAMPLE) - NOT_OF_A_PAGE
    for file in files(tmp_path) - NOT_OF_A_PAGE:
        assert (tmp_path / file).read_text() == (EXAMPLE / file).read_text(), file


@pytest.mark.parametrize("part", PARTS)
def test_the_page_shows_what_is_shown(part: str, reader: tuple[Shell, Path]) -> None:
    """In the order of the page: each part goes on where the one before has ended."""
    shell, begin = reader
    for block in blocks(part):
        do(block, shell, begin / "rdzv-file")
        if (begin / "rdzv-file").exists():
            shutil.copy(EXAMPLE / "LICENSE", begin / "rdzv-file")


@pytest.mark.parametrize(
    ("shown", "expected", "same"),
    [
        ("a\nb\n", ["a", "b"], True),
        ("a\nb\n", ["a"], False),
        ("a\nx\ny\nb\n", ["a", "...", "b"], True),
        ("a\nb\n", ["a", "...", "b"], True),
        ("12:00 node 0\n", ["... node 0"], True),
        ("12:00 node 1\n", ["... node 0"], False),
        ("  backend   9   0   7\n", ["  backend           8       0       5"], True),
        ("  backend   8   1   5\n", ["  backend           8       0       5"], False),
        ("", [], True),
        ("a warning\n", [], False),
    ],
)
def test_what_the_page_does_not_show_is_noticed(shown: str, expected: list[str], same: bool) -> None:
    with nullcontext() if same else pytest.raises(AssertionError):
        check("command", shown, expected)


def test_nothing_that_a_command_has_started_outlives_the_shell(tmp_path: Path) -> None:
    with Shell(tmp_path, tmp_path, grace_s=0.2) as shell:
        _, pid = shell.run("sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & echo $!")
        status = Path("/proc", pid.strip(), "status")
        assert status.exists()
    deadline = time.monotonic() + 30
    while not has_ended(status):  # it was killed, and may not have got so far
        assert time.monotonic() < deadline, status.read_text()
        time.sleep(0.01)


def has_ended(status: Path) -> bool:
    """Also if whoever has inherited it has yet to look."""
    try:
        return "zombie" in status.read_text()
    except OSError:
        return True
