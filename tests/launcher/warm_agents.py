"""``rdzv-run`` without the seconds of ``import torch``: a process that has imported the launcher, and forks.

Run as a program this is that process; ``WarmAgent`` is how the harness starts one of its children. Each agent is a
process of its own, with its own pid, variables, directory and output, runs ``launcher.cli.main`` and ends as the
command does. What is not that of the command is what happens before ``main``: how the interpreter starts, and what it
and torch read from the variables then. Tests of that, and of standard streams, start the command itself.

Each line of the program's input is a request, in JSON: arguments, variables, directory, the file for stdout and
stderr, how many files may be open, a process whose network, host name and mounts are to be the agent's (or 0). A line
of its output says what it has started, or how that has ended: a pid and ``null``, or a pid and the exit code.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import json
import os
import resource
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

READ_AT_START = ("LD_", "PYTHON", "TORCH", "OMP_", "MALLOC_", "RDZV_DEBUG")
"""How the names begin of variables that must be there when the interpreter starts, or torch is imported."""


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


class WarmAgent:
    """A child of the program; to the harness what ``subprocess.Popen`` is to it otherwise."""

    def __init__(self, args: Sequence[str], output: Path, env: Mapping[str, str], inside: int) -> None:
        self.args = args
        self._code: int | None = None
        self._ended = threading.Event()
        output.write_bytes(b"")
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        request = [[*args[1:]], {**env}, str(output.parent), str(output), files, inside]
        self.pid = _forker().start(request, self._end)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        self._ended.wait(timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._code


def can_be_warm(env: Mapping[str, str]) -> bool:
    """True where an agent with these variables may begin in a process that has others."""
    return read_at_start(env) == read_at_start(_forker().env)


@functools.cache
def _forker() -> _Forker:
    """One for all tests of this process."""
    return _Forker()


class _Forker:
    """The program, seen from outside."""

    def __init__(self) -> None:
        from harness import clean_environment, default_signals

        self.env = clean_environment()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
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
            assert self._started.wait(60), "the process that has imported the launcher starts no agent"
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


def serve() -> int:
    """The program. In it nothing returns; in the processes that it forks, the exit code of the command."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # as the command does for its own import
    gc.disable()  # see workers/quick_torch.py
    import launcher.arguments
    import launcher.launch  # noqa: F401
    from launcher.cli import main

    gc.freeze()
    gc.enable()
    del os.environ["TORCH_CPP_LOG_LEVEL"]
    agents: dict[int, int] = {}  # pids by the descriptors that tell of their ends
    poll = select.poll()
    poll.register(0, select.POLLIN)
    pending = b""
    while True:
        for fd, _ in poll.poll():
            if fd:
                poll.unregister(fd)
                os.close(fd)
                pid = agents.pop(fd)
                say(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            if not (read := os.read(0, 65536)):
                os._exit(0)
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                if (pid := os.fork()) == 0:
                    for each in agents:
                        os.close(each)
                    return main(become(*json.loads(line)))
                agents[fd := os.pidfd_open(pid)] = pid
                poll.register(fd, select.POLLIN)
                say(pid, None)


def say(pid: int, code: int | None) -> None:
    os.write(1, f"[{pid}, {json.dumps(code)}]\n".encode())


def become(
    arguments: list[str], environ: dict[str, str], directory: str, output: str, files: tuple[int, int], inside: int
) -> list[str]:
    """Make this process that of an agent; returns its arguments."""
    if inside:
        enter(inside)
    for path, flags, fds in ((os.devnull, os.O_RDONLY, (0,)), (output, os.O_WRONLY, (1, 2))):
        opened = os.open(path, flags)
        for fd in fds:
            os.dup2(opened, fd)
        os.close(opened)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    sys.argv = ["rdzv-run", *arguments]
    return arguments


def enter(pid: int) -> None:
    """As nsenter does; os.setns is there from Python 3.12 on."""
    net, uts, mount = 0x40000000, 0x04000000, 0x00020000
    fd = os.pidfd_open(pid)
    if ctypes.CDLL(None, use_errno=True).setns(fd, net | uts | mount):
        raise OSError(ctypes.get_errno(), f"the agent could not enter the namespaces of {pid}")
    os.close(fd)


if __name__ == "__main__":
    sys.exit(serve())
