"""What one node says about its workers: their states and stacks, read from outside.

A process's stacks are read through py-spy, or from what the process writes itself. Both ways raise ``NoStacks`` with
the reason, and leave the process as it was. Native frames are read from one worker at each place where workers are, as
that takes a few times as long.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rdzv_launcher.run.stacks import processes
from rdzv_launcher.run.stacks.node import NodeSnapshot
from rdzv_launcher.run.stacks.processes import StackedProcess
from rdzv_launcher.run.stacks.reports import MOST_TEXTS, Frame, ProcessReport, Stack, Thread, WorkerReport, limited
from rdzv_plugins.stacks_on_request import SIGNAL
from rdzv_plugins.system.processes import children_now

INSTALL = "pip install 'rdzv-plugins[diagnose]'"

_LOOK_S = 0.02
_LOOKS = 10
_QUIET_S, _LONG_QUIET_S = 0.06, 1.0
"""What a process writes after one signal has no end mark: it is over when nothing more comes. The main thread comes
last, so after its outermost call that is soon; elsewhere the process may have had to wait for a processor.
"""
_OUTERMOST_CALLS = (" in <module>", " in _run_module_as_main")
_MOST_WRITTEN = 100
"""How many threads ``faulthandler`` writes about: if there are more, the main one may not be among them."""
_MOST_OUTPUT = 8 * 2**20
_MOST_THREADS = 256
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_SCOPES = {
    "1": "kernel.yama.ptrace_scope=1: only its ancestors may",
    "2": "kernel.yama.ptrace_scope=2: only root may",
    "3": "kernel.yama.ptrace_scope=3: nobody may",
}
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(?P<name>.*)\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


class NoStacks(Exception):
    """Raised if stacks cannot be read; its text tells people why."""


def py_spy() -> str | None:
    """The path of py-spy: in this installation, or on the path."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def by_py_spy(process: StackedProcess, *, native: bool = False, timeout: float) -> list[Thread]:
    """The threads of a Python process; ``native``: with native frames among those of Python, which is slower."""
    data = py_spy_threads(process, ("--native",) if native and not process.stands_still else (), timeout=timeout)
    try:
        return _threads(data)
    except (ValueError, KeyError, TypeError) as error:
        raise _something_else(error) from None


def py_spy_threads(process: StackedProcess, flags: Sequence[str] = (), *, timeout: float) -> list[dict[str, Any]]:
    """What ``py-spy dump`` says about the threads of a Python process, with these flags."""
    program = py_spy()
    if program is None:
        raise NoStacks(f"py-spy is not installed ({INSTALL})")
    command = [program, "dump", "--json", "--pid", str(process.pid), *flags]
    if process.stands_still:
        command.append("--nonblocking")  # py-spy would wait for a stop that never comes
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.1, timeout),
            env=os.environ | {"RUST_BACKTRACE": "0"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        _let_go_on(process)
        raise NoStacks(f"py-spy did not finish within {timeout:.1f} s") from None
    except OSError as error:
        raise NoStacks(f"py-spy cannot be run: {error}") from None
    if ended.returncode:
        raise NoStacks(f"py-spy: {_reason(ended.stderr.decode(errors='replace'), process.pid)}")
    try:
        found: list[dict[str, Any]] = json.loads(ended.stdout[:_MOST_OUTPUT])
    except ValueError as error:
        raise _something_else(error) from None
    return found


def _something_else(error: Exception) -> NoStacks:
    return NoStacks(f"py-spy did not print stacks: {error!r}")


def by_request(process: StackedProcess, directory: Path | None, *, timeout: float) -> list[Thread]:
    """What a process that has registered for it writes to a file in ``directory``: see ``stacks_on_request``."""
    if directory is None:
        raise NoStacks("it does not write its stacks itself: its job has neither --worker-stacks nor --hang-timeout")
    path = directory / str(process.pid)
    if not path.exists() or not processes.catches(process.pid, SIGNAL):
        raise NoStacks(
            "it does not write its stacks itself, despite --worker-stacks or --hang-timeout: it is not a "
            "Python that reads PYTHONPATH, or its program uses the signal"
        )
    if process.stands_still:
        raise NoStacks("it cannot write its stacks itself as long as it stands still")
    before = path.stat().st_size
    try:
        os.kill(process.pid, SIGNAL)
    except PermissionError:
        raise NoStacks("it belongs to another user, so it cannot be signalled") from None
    except ProcessLookupError:
        raise NoStacks("it has ended") from None
    text, since, deadline = "", time.monotonic(), time.monotonic() + timeout
    with path.open("rb") as file:
        file.seek(before)
        while time.monotonic() < deadline and len(text) < _MOST_OUTPUT:
            if more := file.read(_MOST_OUTPUT).decode(errors="replace"):
                text, since = text + more, time.monotonic()
            quiet = _QUIET_S if text.rstrip("\n").endswith(_OUTERMOST_CALLS) else _LONG_QUIET_S
            if text and time.monotonic() - since > quiet:
                break
            time.sleep(_LOOK_S)
    if not text:
        raise NoStacks(f"it did not write its stacks within {timeout:.1f} s: it is blocked in the kernel")
    return _written(text)


def _let_go_on(process: StackedProcess) -> None:
    """Let the process go on: a debugger that was killed just after it had begun may leave it stopped."""
    if process.state in "Tt":
        return
    for _ in range(_LOOKS):
        now = processes.look(process.pid)
        if now is None:
            return
        if now.state == "T":
            os.kill(process.pid, signal.SIGCONT)
            return
        time.sleep(_LOOK_S)


def _reason(text: str, pid: int) -> str:
    lines = [line.strip() for line in text.partition("Stack backtrace:")[0].splitlines()]
    said = "; ".join(re.sub(r"^(Error|\d+): ", "", line) for line in lines if line and line != "Caused by:")
    if not re.search(r"(?i)permission denied|operation not permitted|elevated|sudo", said):
        return said[:300] or "it gave no reason"
    why = []
    user = processes.user_of(pid)
    if user is not None and user != os.geteuid():
        why.append(f"it runs as user {user}, this one as {os.geteuid()}")
    try:
        scope = _YAMA.read_text().strip()
        why += [_SCOPES[scope]] if scope in _SCOPES else []
    except OSError:
        pass
    reasons = ", and ".join(why) or "a container without CAP_SYS_PTRACE, or a process that hides itself"
    return f"it may not read this process ({reasons})"


def _threads(data: Any) -> list[Thread]:
    threads = []
    for each in data[:_MOST_THREADS]:
        frames = [Frame(str(f["name"]), str(f["filename"]), int(f["line"] or 0)) for f in each["frames"]]
        name, is_main = str(each["thread_name"] or ""), each["os_thread_id"] == each["pid"]
        is_main = is_main or (each["os_thread_id"] is None and name == "MainThread")
        threads.append(Thread(name, is_main, limited(frames), bool(each["active"])))
    return sorted(threads, key=lambda thread: not thread.is_main)


def _written(text: str) -> list[Thread]:
    """Parse what ``faulthandler`` has written: the main thread comes last."""
    found: list[tuple[str, list[Frame]]] = []
    current = 0
    for line in text.splitlines():
        if head := _THREAD.match(line):
            current = len(found) if line.startswith("Current") else current
            found.append((head["name"] or "", []))
        elif (frame := _FRAME.match(line)) and found:
            number = frame["line"]
            found[-1][1].append(Frame(frame["function"], frame["file"], int(number) if number.isdecimal() else 0))
    if not found:
        raise NoStacks("what it wrote is not a stack")
    # the kernel sends a signal to the main thread, as long as that can take it
    main = current if len(found) >= _MOST_WRITTEN else len(found) - 1
    threads = [Thread(name, number == main, limited(frames)) for number, (name, frames) in enumerate(found)]
    return sorted(threads, key=lambda thread: not thread.is_main)


_AT_A_TIME = max(4, 2 * (os.cpu_count() or 1))
NATIVE_S = 3.0
"""The time for native frames: looking up symbols of torch's libraries takes seconds, and must not hold up the rest."""
_ONE_S = 8.0
"""The most seconds for one process, out of those for all."""
_NATIVE_PLACES = 8
_CHILDREN_NAMED = 16
_CHILDREN_READ = 32


def gather(
    node: NodeSnapshot, *, within: float, children: bool = False, native: float = NATIVE_S
) -> list[WorkerReport]:
    """Where the node's workers are, after about ``within`` seconds at the latest. Raises nothing.

    ``children``: include the stacks of what the workers have started. ``native``: how many of those seconds native
    frames may take to read; after that they are left out. Workers that have ended are included without a stack.
    """
    deadline = time.monotonic() + within
    reader = _Reader(node.own_stacks, children_now(), deadline, children)
    places: dict[tuple[Frame, ...], ProcessReport] = {}
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="rdzv-stacks") as pool:
        found = list(pool.map(reader.read, (worker.pid for worker in node.workers)))
        for each in found:
            if each.how == "py-spy":
                places.setdefault(each.frames, each)
        reader.deadline = min(deadline, time.monotonic() + native)
        list(pool.map(reader.add_native, [*places.values()][:_NATIVE_PLACES]))
    return [
        WorkerReport(worker.rank, worker.local_rank, node.node_rank, node.host, each)
        for worker, each in zip(node.workers, found, strict=True)
    ]


class _Reader:
    """Reads processes until a given moment (monotonic). Thread-safe."""

    def __init__(self, own: Path | None, pids_of: Callable[[int], list[int]], deadline: float, children: bool) -> None:
        written = functools.partial(by_request, directory=own)
        self._ways: dict[str, Callable[..., list[Thread]]] = {"py-spy": by_py_spy, "faulthandler": written}
        self._pids_of, self.deadline, self._children = pids_of, deadline, children

    def read(self, pid: int) -> ProcessReport:
        """Read a worker and, if wanted, the processes below it."""
        process = processes.look(pid)
        if process is None or not processes.is_there(process):
            return ProcessReport(pid, "ended")
        found = self._read_one(process)
        below = [each for each in map(processes.look, processes.below(pid, self._pids_of)) if processes.is_there(each)]
        found.children = tuple(map(_without_stacks, below[:_CHILDREN_NAMED]))
        if self._children or found.is_python is False:
            found.below = tuple(map(self._read_one, below[:_CHILDREN_READ]))
        return found

    def _read_one(self, process: StackedProcess) -> ProcessReport:
        found = _without_stacks(process)
        found.is_python = processes.is_python(process.pid)
        if found.is_python is False:
            found.tried = ("it is not a Python program",)
        else:
            found.how, found.threads, found.tried = self._threads(process)
        if process.state == "D" or not found.how:
            found.kernel = tuple(processes.kernel_stack(process.pid)[:MOST_TEXTS])
        return found

    def _threads(self, process: StackedProcess) -> tuple[str, tuple[Thread, ...], tuple[str, ...]]:
        """How its stacks were read, its threads, and why other ways were not possible."""
        tried = list[str]()
        for how, read in self._ways.items():
            try:
                seconds = max(0.5, min(_ONE_S, self.deadline - time.monotonic()))
                return how, tuple(read(process, timeout=seconds)), tuple(tried)
            except NoStacks as error:
                tried.append(str(error))
        return "", (), tuple(tried)

    def add_native(self, found: ProcessReport) -> None:
        """Add the native frames of its main thread, if it is still at the same place, unless there is no time left.

        Those around ``main`` are left out.
        """
        process = processes.look(found.pid)
        if process is None or process.stands_still or time.monotonic() >= self.deadline:
            return
        try:
            threads = by_py_spy(process, native=True, timeout=self.deadline - time.monotonic())
        except NoStacks:
            return
        frames = threads[0].frames if threads else ()
        python = [at for at, frame in enumerate(frames) if frame.line]
        if python and [frames[at] for at in python] == list(found.frames):
            found.native = Stack(frames[: python[-1] + 1])


def _without_stacks(process: StackedProcess) -> ProcessReport:
    return ProcessReport(process.pid, process.state, process.wait_channel, process.command)
