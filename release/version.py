"""The version of the project, as pyproject.toml has it."""

from __future__ import annotations

import re
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
_LINE = re.compile(r'^version = "(.*)"$', re.MULTILINE)


def version() -> str:
    """Raises ``TypeError`` if there is none."""
    return _LINE.search(PYPROJECT.read_text())[1]  # type: ignore[index]


def set_version(new: str) -> None:
    """Write another one."""
    PYPROJECT.write_text(_LINE.sub(f'version = "{new}"', PYPROJECT.read_text(), count=1))
