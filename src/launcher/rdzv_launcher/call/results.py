"""What workers return or raise, as files: of any size, and nobody waits for whoever reads them.

A worker's files are named after its pid: those of an earlier round are nobody's.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

from rdzv_launcher.call.errors import WorkerTraceback

_RAISED = ".raised"


class Results:
    """The files of one call in ``directory``, which is there. For workers and for the caller."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def keep(self, value: Any) -> None:
        """Keep what this process returns. Raises ``TypeError`` if it cannot be pickled, ``OSError`` without room."""
        try:
            self._write("", value)
        except OSError:
            raise
        except Exception as error:
            raise TypeError(
                f"the function returned a {type(value).__qualname__}, which pickle cannot bring to the caller: "
                f"{error}. Return what can be pickled, or nothing and write it to a file"
            ) from error

    def keep_raised(self, error: BaseException, text: str) -> None:
        """Keep the exception that ends this process, and its traceback as a text; without it, if it has to be."""
        try:
            self._write(_RAISED, (_pickled(error), text))
        except OSError:  # there are still the error file and the worker's standard error
            pass

    def has(self, pid: int) -> bool:
        """True if the worker's function has returned."""
        return os.path.exists(self._path(pid, ""))

    def returned(self, pid: int) -> Any:
        """What the worker's function has returned. Raises whatever pickle does."""
        with open(self._path(pid, ""), "rb") as file:
            return pickle.load(file)

    def raised(self, pid: int) -> BaseException | None:
        """The worker's exception, whose cause is its traceback; that alone if there can be no such exception here."""
        try:
            with open(self._path(pid, _RAISED), "rb") as file:
                data, text = pickle.load(file)
        except OSError:
            return None
        traceback = WorkerTraceback(text)
        try:
            error = pickle.loads(data)
        except Exception:  # its class may not be there, or take other arguments than it keeps
            return traceback
        if not isinstance(error, Exception):
            return traceback
        error.__cause__ = traceback
        return error

    def _path(self, pid: int, kind: str) -> str:
        return os.path.join(self.directory, f"{pid}{kind}")

    def _write(self, kind: str, value: Any) -> None:
        write_whole(self._path(os.getpid(), kind), value)


def write_whole(path: str, value: Any) -> None:
    """Pickle ``value`` into a file that is there whole or not at all. Raises what pickle does, and ``OSError``."""
    with open(f"{path}.new", "wb") as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    os.rename(f"{path}.new", path)


def _pickled(error: BaseException) -> bytes:
    """Empty if it cannot be: that is then found out where it is read."""
    try:
        return pickle.dumps(error)
    except Exception:
        return b""
