"""Nothing of a benchmark outlives it, even if it is killed.

``python -m rdzv_launcher.bench.processes.guard MARK [DIR]`` makes a directory, and another below DIR, and prints their
paths. When its standard input ends, along with the process that started it, it kills every process that carries the
mark in its environment, including frozen ones, and deletes both. Marks of parts begin with that of the whole:
``MARK-1`` is part of ``MARK``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from rdzv_launcher.bench.processes.child import Child, module_command
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.processes import MARK, clean_environment, kill
from rdzv_plugins.testing.processes import marked as carrying

_START_LIMIT_S = 60.0
_END_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.02


class Guard:
    """A context manager: while it is open, all that this process starts is the guard's, unless it gets no environment.

    That includes the services of backends. For one thread.
    """

    def __init__(self, data: Path | None = None) -> None:
        """``data``: where another directory is to be created, ``below``."""
        self.mark = uuid.uuid4().hex
        self.directory = self.below = Path()
        """For all files, and for those that must be on the disk of ``data``; both are deleted with the guard."""
        self._data = [str(data)] if data is not None else []
        self._jobs = 0

    def new_job(self) -> tuple[str, Path]:
        """A mark for one job, and an empty directory."""
        self._jobs += 1
        made = self.directory / f"job-{self._jobs}"
        made.mkdir()
        return f"{self.mark}-{self._jobs}", made

    def __enter__(self) -> Guard:
        self._before = os.environ.get(MARK)
        command = module_command("processes.guard", self.mark, *self._data)
        self._process = Child("the process that ends all others with the benchmark", command, end_limit_s=_END_LIMIT_S)
        try:
            self.directory, self.below = map(Path, json.loads(self._process.wait_ready(_START_LIMIT_S)))
        except BaseException:
            self._process.end()
            raise
        os.environ[MARK] = self.mark
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = self._before
        self._process.end()


def environment(mark: str) -> dict[str, str]:
    """The variables for an agent: those of this process without a launcher's, and the mark."""
    return clean_environment() | {MARK: mark}


def marked(mark: str) -> list[int]:
    """The live processes that carry the mark, or that of a part of it, in the order of their ids."""
    return sorted(carrying(mark, parts=True))


def end_all(mark: str) -> None:
    """Kill what carries the mark; returns when it is gone. Raises ``RdzvError`` if it does not go."""
    deadline = time.monotonic() + _END_LIMIT_S / 2
    while left := marked(mark):  # an agent that is killed may have just started a worker
        for pid in left:
            kill(pid)
        if time.monotonic() > deadline:
            raise RdzvError(f"processes {left} do not end by SIGKILL")
        time.sleep(_LOOK_EVERY_S)


def main() -> None:
    """Wait for the end of standard input, and clean up."""
    mark, *data = sys.argv[1:]
    with ExitStack() as made:
        directories = [
            made.enter_context(tempfile.TemporaryDirectory(prefix="rdzv-bench-", dir=where, ignore_cleanup_errors=True))
            for where in (None, *data)
        ]
        print(json.dumps([directories[0], directories[-1]]), flush=True)
        sys.stdin.buffer.read()
        end_all(mark)


if __name__ == "__main__":
    main()
