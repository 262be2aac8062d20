"""Launchers without the seconds of ``import torch``: forks of a process that has imported them.

That process is workers/warm_agents.py, one for each process that runs tests; ``WarmAgent`` starts one of its children.
"""

from __future__ import annotations

import atexit
import functools
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rdzv_plugins.testing.agents.processes import before_exec, clean_environment

Program: TypeAlias = Literal["rdzv-run", "torchrun"]

READ_AT_START = ("LD_", "PYTHON", "TORCH", "OMP_", "MALLOC_", "RDZV_DEBUG")
"""How the names begin of variables that must be there when the interpreter starts, or torch is imported."""

_WARM = Path(__file__).parent / "workers" / "warm_agents.py"
_ROOM, _LONGEST = 32_000, 4_000
"""Bytes of variables and of a command line that /proc can show of a fork: see workers/warm_process.py."""
_START_S = 180.0
"""More than importing torch takes on a machine that is busy with other things."""


class WarmAgent:
    """A process that is as the program's, but for how the interpreter has started; used as a ``subprocess.Popen``.

    stdout and stderr go to ``output``; its directory is the one of that. ``inside``: a process whose network, host name
    and mounts are to be its own, too. ``wait`` and ``poll`` may be called by any thread.
    """

    def __init__(
        self, program: Program, arguments: Sequence[str], output: Path, env: Mapping[str, str], inside: int = 0
    ) -> None:
        self.args = [program, *arguments]
        self._code: int | None = None
        self._ended = threading.Event()
        output.write_bytes(b"")
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        request = [program, [*arguments], {**env}, str(output.parent), str(output), files, inside]
        self.pid = _forker().start(request, self._end)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises ``subprocess.TimeoutExpired``; ``timeout`` is in seconds."""
        self._ended.wait(timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._code


def can_be_warm(env: Mapping[str, str]) -> bool:
    """True where an agent with these variables may begin in a process that has others."""
    return _read_at_start(env) == _read_at_start(_forker().env)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


@functools.cache
def _forker() -> _Forker:
    """One for all tests of this process."""
    return _Forker()


class _Forker:
    """The warm process, seen from outside."""

    def __init__(self) -> None:
        self.env = clean_environment()
        self._process = subprocess.Popen(
            [sys.executable, str(_WARM), "x" * _LONGEST],
            env=self.env | {"RDZV_TEST_ROOM": "x" * _ROOM},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=before_exec(),
        )
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._pid = 0
        self._told: Callable[[int], None]
        self._ends: dict[int, Callable[[int], None]] = {}
        threading.Thread(target=self._read, daemon=True).start()
        atexit.register(self._close)

    def start(self, request: Sequence[object], told: Callable[[int], None]) -> int:
        """The pid of a new agent; ``told`` is given its exit code once."""
        assert self._process.stdin
        with self._lock:
            self._started.clear()
            self._told = told
            print(json.dumps(request), file=self._process.stdin, flush=True)
            assert self._started.wait(_START_S), "the process that has imported the launcher starts no agent"
            return self._pid

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            pid, code = json.loads(line)
            if code is None:
                self._pid, self._ends[pid] = pid, self._told
                self._started.set()
            else:
                self._ends.pop(pid)(code)

    def _close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()  # the end of its input ends it
        self._process.wait(30)
