"""All messages in one file, tests/messages.txt: it is looked at in review, and no test asserts wording elsewhere.

``UPDATE_MESSAGES=1 .venv/bin/python -m pytest -n0 tests/unit`` writes what has changed.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

FILE = Path(__file__).parents[1] / "messages.txt"


def check_message(scenario: str, said: BaseException | str) -> None:
    """The text of an error with its remedy, or any other text, is the one of the file."""
    text = said if isinstance(said, str) else f"{said}\n{getattr(said, 'remedy', '')}"
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "HOST", text)
    text = "".join(f"    {line}".rstrip() + "\n" for line in text.strip().splitlines())
    known = dict(re.findall(r"^## (.*)\n((?:    .*\n|\n)*)", FILE.read_text(), re.MULTILINE))
    if os.environ.get("UPDATE_MESSAGES") and known.get(scenario, "").rstrip() != text.rstrip():
        known[scenario] = text
        FILE.write_text("\n".join(f"## {name}\n{known[name].rstrip()}\n" for name in sorted(known)))
    assert known.get(scenario, "").rstrip() == text.rstrip(), f"tests/messages.txt: {scenario}"
