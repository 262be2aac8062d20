"""What the interpreter writes when a program ends badly, by the interpreter itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rdzv_launcher.run.stderr_pipes import KEEP_LINES, last_lines
from rdzv_launcher.run.workers.causes import cause_of
from rdzv_launcher.run.workers.memory_kills import MemoryKills
from rdzv_launcher.run.workers.tracebacks import LastTraceback, read_traceback

FILES = {
    "missing.py": "import os\nimport nothing_of_the_kind\n",
    "deep.py": "import missing\n",
    "calls.py": "def load():\n    raise OSError('libcudart.so.12: not found')\n\n\nload()\n",
    "library.py": "from calls import load\n",
    "broken.py": "def main(:\n    pass\n",
    "of_broken.py": "import broken\n",
    "lazy.py": "def main():\n    import nothing_of_the_kind\n\n\nmain()\n",
    "value.py": "def main():\n    raise ValueError('two\\nlines')\n\n\nmain()\n",
    "name.py": "def main():\n    step()\n\n\nmain()\n",
    "chained.py": "try:\n    import nothing_of_the_kind\nexcept ImportError as no:\n    raise ValueError from no\n",
    "noisy.py": "import sys\n\n\nsys.stderr.write('Error: nothing to do with it\\n')\nsys.exit(3)\n",
    "own.py": "class Bad(Exception):\n    pass\n\n\nraise Bad\n",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("programs")
    for name, text in FILES.items():
        (directory / name).write_text(text)
    (directory / "nest0.py").write_text("import nothing_of_the_kind\n")
    for number in range(1, 15):
        (directory / f"nest{number}.py").write_text(f"import nest{number - 1}\n")
    return directory


def stderr_of(programs: Path, *arguments: str) -> tuple[str, ...]:
    ended = subprocess.run([sys.executable, *arguments], cwd=programs, capture_output=True, check=False)
    assert ended.returncode > 0
    return last_lines(ended.stderr)


@pytest.mark.parametrize(
    ("arguments", "exception", "place", "importing", "of_the_text"),
    [
        ("missing.py", "ModuleNotFoundError", "missing.py:2", True, True),
        ("deep.py", "ModuleNotFoundError", "missing.py:2", True, True),
        ("library.py", "OSError", "calls.py:2", True, False),
        ("broken.py", "SyntaxError", "broken.py:1", True, True),
        ("of_broken.py", "SyntaxError", "broken.py:1", True, True),
        ("-m of_broken", "SyntaxError", "broken.py:1", True, True),
        ("-m library", "OSError", "calls.py:2", True, False),
        ("nest14.py", "ModuleNotFoundError", "nest0.py:1", True, True),
        ("lazy.py", "ModuleNotFoundError", "lazy.py:2", False, True),
        ("value.py", "ValueError", "value.py:2", False, False),
        ("-m value", "ValueError", "value.py:2", False, False),
        ("name.py", "NameError", "name.py:2", False, True),
        ("chained.py", "ValueError", "chained.py:4", False, False),
        ("own.py", "Bad", "own.py:5", False, False),
    ],
)
def test_a_real_traceback(
    programs: Path, arguments: str, exception: str, place: str, importing: bool, of_the_text: bool
) -> None:
    lines = stderr_of(programs, *arguments.split())
    found = read_traceback(lines)
    assert found is not None
    assert found.exception.rpartition(".")[2] == exception
    assert found.place.endswith(f"/{place}")
    assert (found.importing, found.is_of_the_text) == (importing, of_the_text)
    said = cause_of(1, lines, MemoryKills())
    assert said == (
        f"It failed while it imported its modules: {found.exception} at {found.place}." if importing else ""
    )


def test_the_deepest_of_them_is_longer_than_what_is_kept(programs: Path) -> None:
    lines = stderr_of(programs, "nest14.py")
    assert len(lines) == KEEP_LINES
    assert "Traceback" not in lines[0]


@pytest.mark.parametrize("arguments", ["nothing.py", "-m nothing_of_the_kind", "."])
def test_no_program_at_all(programs: Path, arguments: str) -> None:
    assert read_traceback(stderr_of(programs, *arguments.split())) == LastTraceback("", "", importing=True)


def test_what_is_no_traceback_is_none(programs: Path) -> None:
    assert read_traceback(stderr_of(programs, "noisy.py")) is None
    for lines in ((), ("",), ("Traceback (most recent call last):",), ('  File "a.py", line 3, in <module>',)):
        assert read_traceback(lines) is None
