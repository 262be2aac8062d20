"""What workers return or raise, as files: these may have any size, and nobody waits for their reader.

A worker's files are named after its pid, so that those of an earlier round belong to nobody.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

from rdzv_launcher.call.errors import WorkerTraceback

_RAISED = ".raised"


class Results:
    """The files of one call in ``directory``, which exists. For workers and for the caller."""

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
        """Keep the exception that ends this process, and its traceback as text; if need be, without the exception."""
        try:
            self._write(_RAISED, (_pickled(error), text))
        except OSError:  # there are still the error file and the worker's standard error
            pass

    def has(self, pid: int) -> bool:
        """True if the worker's function has returned."""
        return os.path.exists(self._path(pid, ""))

    def returned(self, pid: int) -> Any:
        """What the worker's function returned. Raises whatever pickle raises."""
        with open(self._path(pid, ""), "rb") as file:
            return pickle.load(file)

    def raised(self, pid: int) -> BaseException | None:
        """The worker's exception, caused by its traceback; only the latter if the exception cannot be restored here."""
        try:
            with open(self._path(pid, _RAISED), "rb") as file:
                data, text = pickle.load(file)
        except OSError:
            return None
        traceback = WorkerTraceback(text)
        try:
            error = pickle.loads(data)
        except Exception:  # its class may not exist here, or takes other arguments than it keeps
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
    """Pickle ``value`` into a file that exists completely or not at all. Raises what pickle raises, and ``OSError``."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # a cleaner of temporary files may have removed it
    with open(f"{path}.new", "wb") as file:
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
    os.rename(f"{path}.new", path)


def _pickled(error: BaseException) -> bytes:
    """The pickled error; empty if it cannot be pickled: the reader then notices that."""
    try:
        return pickle.dumps(error)
    except Exception:
        return b""
