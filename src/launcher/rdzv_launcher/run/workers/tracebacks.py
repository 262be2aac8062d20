"""Reads the end of a worker's stderr: which exception ended it, where, and whether that was while it imported.

The text is the interpreter's, but a script may have changed or cut it: anything not in the interpreter's format counts
as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

_HEAD = "Traceback (most recent call last):"
_FRAME = r'^[\s|]*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$'
_EXCEPTION = r"^(?P<name>[A-Za-z_][\w.]*)(?:: .*)?$"
_IMPORT = r"^\s*(?:import|from)\s"
_NO_PROGRAM = r"^\S*python[\d.]*: (?:can't (?:open file|find '__main__')|No module named |Error while finding )"
_OF_IMPORTS = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"})
_OF_THE_TEXT = _OF_IMPORTS | {"NameError"}
_MODULE = "<module>"


class LastTraceback(Struct, frozen=True):
    """The last traceback on a worker's stderr."""

    exception: str
    """The name of its class, as printed; empty if the interpreter has refused to begin."""
    place: str
    """Where it was raised, such as ``/job/train.py:3``; empty if the interpreter has refused to begin."""
    importing: bool
    """It was raised while the script imported its modules, or there was no script to run."""

    @property
    def is_of_the_text(self) -> bool:
        """Whether the program's text, or what is installed, is at fault: the same program raises it every time."""
        return self.exception in _OF_THE_TEXT


def read_traceback(lines: Sequence[str]) -> LastTraceback | None:
    """The last traceback among the last lines of a worker's stderr; None if there is none that can be read."""
    if lines and re.match(_NO_PROGRAM, lines[-1]):
        return LastTraceback("", "", importing=True)
    heads = [number for number, line in enumerate(lines) if line.strip(" |") == _HEAD]
    frames = [(number, found) for number, line in enumerate(lines) if (found := re.match(_FRAME, line))]
    if not frames:
        return None
    last, frame = frames[-1]
    name = next((found["name"] for line in lines[last + 1 :] if (found := re.match(_EXCEPTION, line))), "")
    if not name:
        return None
    whole = bool(heads) and heads[-1] < last
    own = [each for each in frames if not whole or each[0] > heads[-1]]
    own = [(number, found) for number, found in own if not _is_interpreters(found)] or own
    return LastTraceback(name, f"{frame['file']}:{frame['line']}", _is_of_imports(lines, own, name, whole))


def _is_interpreters(frame: re.Match[str]) -> bool:
    """Whether the frame is of the code that runs a script by ``-m``, which is frozen from Python 3.11 on."""
    return frame["file"].startswith("<frozen ") or (
        frame["file"].endswith("/runpy.py") and frame["function"] in ("_run_module_as_main", "_run_code")
    )


def _is_of_imports(lines: Sequence[str], frames: list[tuple[int, re.Match[str]]], name: str, whole: bool) -> bool:
    """``frames`` are the available frames of the traceback; ``whole``: it is complete, including its beginning."""
    number, first = frames[0]
    if whole and first["function"] == _MODULE and re.match(_IMPORT, "".join(lines[number + 1 : number + 2])):
        return True
    # either the script itself cannot be compiled, and there is no traceback; or its beginning is cut off
    return (
        not (whole and len(frames) > 1)
        and name in _OF_IMPORTS
        and all(found["function"] in (_MODULE, None) for _, found in frames)
    )
