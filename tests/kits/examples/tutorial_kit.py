"""A page of docs/ as its reader works through it: files written, commands typed, what is shown compared.

A block of code below a line that begins with a path in backticks is that file, or with ``at its end`` the next piece
of it. In a ``console`` block lines with ``$ `` are commands, the others what they show: ``...`` is anything, and a
block with a command in the background shows its lines in any order. Other blocks are only looked at.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
import threading
import venv
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 600
NOT_OF_A_PAGE = {"LICENSE", "hello.py"}
"""The text of the one is the reader's choice; the other is a script to launch, and not part of the package."""
_PROGRAMS = {"rdzv": "rdzv_launcher.tools", "rdzv-run": "rdzv_launcher.run.cli", "torchrun": "torch.distributed.run"}
_CAPTION = re.compile(r"`([\w./-]+)`(, at its end)?:")
_ROW = re.compile(r"  (\w+) +\d+ +(\d+) +\d+")
_PIP = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip takes this name's 0 as "no isolation"
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
}


@dataclass(frozen=True)
class Block:
    """A block of a page. ``file`` is set if it is one, or a piece of one."""

    language: str
    text: str
    heading: str
    file: str = ""
    goes_on: bool = False

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """Each with the lines that the page shows below it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
        return found


def read_page(page: Path) -> list[Block]:
    blocks, heading, above, lines = [], "", "", iter(page.read_text().splitlines())
    for line in lines:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if line.startswith("```"):
            fence, language = re.fullmatch(r"(`+)(\w*)", line).groups()  # type: ignore[union-attr]
            inside = list(iter(lambda: next(lines), fence))
            caption = _CAPTION.match(above)
            own = (caption[1], bool(caption[2])) if caption else ("", False)
            blocks.append(Block(language, "".join(f"{each}\n" for each in inside), heading, *own))
        above = line or above
    return blocks


def environment(directory: Path) -> Path:
    """A virtual environment in which this project's commands are there, and plug-ins can be installed; its folder.

    It also sees the packages of the one that runs the tests.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    of_it = {"base": str(directory), "platbase": str(directory)}
    beside = Path(sysconfig.get_path("purelib", vars=of_it)) / "beside.pth"
    beside.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name, main in _PROGRAMS.items():
        program = directory / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{directory}/bin/python" -m {main} "$@"\n')
        program.chmod(0o755)
    return directory


class Shell:
    """A shell of a reader: what is set or started by one command is there for the next. A context manager."""

    def __init__(self, env: Path, directory: Path) -> None:
        others = ("PET_", "RDZV_", "TORCHELASTIC_", "PYTEST_")
        own = {k: v for k, v in os.environ.items() if not k.startswith(others) or k.startswith("PYTEST_XDIST_WORKER")}
        own |= _PIP | {"PATH": f"{env / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
        own["GLOO_SOCKET_IFNAME"] = "lo"
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=own,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever still runs gets SIGTERM, so that agents stop their workers; then SIGKILL."""
        for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, LIMIT_S)):
            try:
                os.killpg(self._bash.pid, number)
                self._bash.communicate(timeout=seconds)  # the pipe ends with the last one who could write to it
                return
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._bash.wait()

    def run(self, command: str) -> tuple[int, str]:
        """Its exit code, and what it shows."""
        assert self._bash.stdin
        assert self._bash.stdout
        end = "-- end of command, code"
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null; code=$?; echo; echo '{end}' $code\n")
        self._bash.stdin.flush()
        limit = threading.Timer(LIMIT_S, os.killpg, (self._bash.pid, signal.SIGTERM))
        limit.start()
        try:
            shown = ""
            while not (line := self._bash.stdout.readline()).startswith(end):
                assert line, f"{command}\n{shown}\nthe shell has ended, perhaps after {LIMIT_S} s"
                shown += line
            return int(line.split()[-1]), shown.removesuffix("\n")
        finally:
            limit.cancel()


def files(directory: Path) -> set[str]:
    """All that are not made by tools."""
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {str(path) for path in found if not any(part.startswith((".", "__pycache__")) for part in path.parts)}


def write(block: Block, directory: Path) -> None:
    """The file of this block, or its next piece."""
    path = directory / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() + "\n\n" if block.goes_on else "") + block.text)


def do(block: Block, shell: Shell, directory: Path) -> None:
    """What the page tells its reader to do with this block."""
    if block.file:
        write(block, directory)
    elif block.language == "console" and "&" in block.text:
        shown = "".join(shell.run(command)[1] for command, _ in block.commands)
        expected = [line for _, lines in block.commands for line in lines]
        check(block.text, shown, expected, any_order=True)
    elif block.language == "console":
        for command, lines in block.commands:
            check(command, shell.run(command)[1], lines)


def check(command: str, shown: str, expected: list[str], *, any_order: bool = False) -> None:
    """``...`` is any number of lines, or any part of one."""
    if any_order:
        for line in expected:
            assert re.search(rf"^{_pattern(line)}$", shown, re.MULTILINE), f"{line!r} is not in:\n{command}\n{shown}"
        return
    pattern = "".join("(?:.*\n)*?" if line == "..." else _pattern(line) + "\n" for line in expected)
    assert re.fullmatch(pattern, _tables(shown)), f"{command}\nshows:\n{shown}\nand the page:\n" + "\n".join(expected)


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, _tables(line).split("...")))


def _tables(text: str) -> str:
    """How many tests a theme has may change; how many of them fail may not."""
    return _ROW.sub(r"  \1 \2 failed", text)
