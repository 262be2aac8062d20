"""Launchers without the seconds that imports take: forks of a process that has imported them.

That process is workers/warm_agents.py; ``WarmAgent`` starts one of its children. Each process that runs tests has up to
two: one without torch, and one with it for agents that would import it, or whose workers may be warm.
"""

from __future__ import annotations

import atexit
import functools
import json
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Capability
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
        self.pid = _forker(_wants_torch(program, arguments, output.parent, env)).start(request, self._end)

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
    return _read_at_start(env) == _read_at_start(_environment())


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


def _wants_torch(program: Program, arguments: Sequence[str], directory: Path, env: Mapping[str, str]) -> bool:
    """Whether the agent is likely to import torch, or a worker that may be warm. A wrong guess costs time."""
    told = [*arguments, *(value for name, value in env.items() if name.startswith(("PET_", "RDZV_")))]
    words = {word for text in told for word in re.split(r"[=,]", text)}
    return (
        program == "torchrun"
        or any(text.startswith(("--preload", "--standalone")) or "torch" in text for text in arguments)
        or not words.isdisjoint(_torchs_own())
        or any(asks_for_it(directory / text) for text in arguments if text.endswith(".py"))
    )


def asks_for_it(script: str | Path) -> bool:
    """Whether it is a script that may run in a warm worker, see workers/warm_workers.py."""
    try:
        return b"import quick_torch" in Path(script).read_bytes()
    except OSError:
        return False


@functools.cache
def _torchs_own() -> frozenset[str]:
    """The names of backends that run the rendezvous of torch's launcher."""
    backends = [entry.backend for entry in PluginHost.load().catalog.entries()]
    own = [backend for backend in backends if Capability.TORCHRUN_PEERS in backend.capabilities]
    return frozenset(name for backend in own for name in (backend.name, *backend.aliases))


@functools.cache
def _environment() -> dict[str, str]:
    return clean_environment()


@functools.cache
def _forker(with_torch: bool) -> _Forker:
    """One for all tests of this process."""
    return _Forker(with_torch)


class _Forker:
    """The warm process, seen from outside."""

    def __init__(self, with_torch: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_WARM), "torch" if with_torch else "light", "x" * _LONGEST],
            env=_environment() | {"RDZV_TEST_ROOM": "x" * _ROOM},
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
