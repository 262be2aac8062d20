"""Nothing of ``rdzv bench launch`` and ``rdzv bench faults`` outlives them, even if they are killed.

``python -m launcher.bench.launch_guard MARK`` makes a directory and prints its path. When its standard input ends,
with whoever has started it, it kills every process that carries the mark in its environment, frozen ones too, and
deletes the directory. Marks of parts begin with that of the whole: ``MARK-1`` is part of ``MARK``.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType

from launcher.bench.ends import end_by_input
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.testing.launch_processes import MARK, clean_environment, kill

_START_LIMIT_S = 60.0
_END_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.02


class Guard:
    """A context manager: while it is open, all that this process starts is the guard's, unless it gets no environment.

    So the services of backends are, too. Used by one thread.
    """

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.directory = Path()
        """For all files; it goes with the guard."""
        self._jobs = 0

    def new_job(self) -> tuple[str, Path]:
        """A mark for one job, and an empty directory."""
        self._jobs += 1
        made = self.directory / f"job-{self._jobs}"
        made.mkdir()
        return f"{self.mark}-{self._jobs}", made

    def __enter__(self) -> Guard:
        self._before = os.environ.get(MARK)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "launcher.bench.launch_guard", self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends it
        )
        assert self._process.stdout is not None, "started with a pipe"
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(_START_LIMIT_S) else b""
        if not line:
            self._end()
            raise RdzvError("the process that ends all others with the benchmark did not start; its stderr says why")
        self.directory = Path(os.fsdecode(line[:-1]))
        os.environ[MARK] = self.mark
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = self._before
        self._end()

    def _end(self) -> None:
        end_by_input(self._process, _END_LIMIT_S)


def environment(mark: str) -> dict[str, str]:
    """For an agent: the variables of this process without those of a launcher, and the mark."""
    return clean_environment() | {MARK: mark}


def marked(mark: str) -> list[int]:
    """The processes that live and carry the mark, or that of a part of it, in the order of their ids."""
    found = []
    whole, part = f"{MARK}={mark}".encode(), f"{MARK}={mark}-".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            ours = any(each == whole or each.startswith(part) for each in variables)
            if ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(entry.name))
        except OSError:  # it has just ended, or is another user's
            continue
    return sorted(found)


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
    with tempfile.TemporaryDirectory(prefix="rdzv-bench-", ignore_cleanup_errors=True) as directory:
        print(directory, flush=True)
        sys.stdin.buffer.read()
        end_all(sys.argv[1])


if __name__ == "__main__":
    main()
