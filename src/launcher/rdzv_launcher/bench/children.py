"""What a benchmark runs besides itself: its child processes, the guard that ends all of them, and names by a file.

A child is a fresh interpreter with a connection, and ends when that is closed. Whatever else is started carries the
guard's mark in its environment and is killed when the benchmark ends, however it ends. At the end are readings of a
process and of the machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from rdzv_launcher.bench.points import DidNotFinish
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.system import prctl
from rdzv_plugins.system.processes import children_now, ended_by, read_stat
from rdzv_plugins.testing.processes import MARK, clean_environment, kill, marked

C = TypeVar("C", bound="Child")

_BEGIN = "from rdzv_launcher.bench.children import begin; begin()"
_LAST_LINES = 12
_START_LIMIT_S = 120.0
_END_LIMIT_S = 60.0


class Child:
    """A process that runs ``run(connection, *arguments)``. A context manager: at its end the process has ended."""

    def __init__(
        self,
        what: str,
        run: Callable[..., None],
        *arguments: Any,
        environment: Mapping[str, str] = MappingProxyType({}),
        end_limit_s: float = 0.5,
    ) -> None:
        """Returns at once. ``what`` is its name in messages. It is killed if it does not end by itself in its limit."""
        self._what, self._end_limit_s = what, end_limit_s
        # thousands of nodes may warn: no pipe holds that; nor is a file left if both are killed
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed by end)
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stderr=self._stderr,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the benchmark, which then ends it
            )
        self.pid = self._process.pid
        self.tell(sys.path)
        self.tell((run, arguments))

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def tell(self, message: Any) -> None:
        """Send it something. If it has ended, ``answer`` will say so."""
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def answer(self, limit_s: float = _START_LIMIT_S) -> Any:
        """What it says next. Raises an exception that it has sent, and ``RdzvError`` if it is silent or has ended."""
        try:
            if not self._connection.poll(limit_s):
                raise RdzvError(f"{self._what} did not answer within {limit_s:g} s")
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._ended() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, message: Any, limit_s: float = _START_LIMIT_S) -> Any:
        """``tell``, and the ``answer``."""
        self.tell(message)
        return self.answer(limit_s)

    def cpu_seconds(self) -> float:
        """Its CPU time so far, user and system. Raises ``RdzvError`` with its last words if it has ended."""
        try:
            return exact_cpu_seconds(self.pid)
        except OSError:
            raise self._ended() from None

    def end(self) -> None:
        """End it, if it has not ended: by closing its connection, or by SIGKILL."""
        self._connection.close()
        self._wait(self._end_limit_s)
        self._process.kill()
        self._process.wait()
        self._stderr.close()

    def _wait(self, limit_s: float) -> int | None:
        """Its exit code; None if it has not ended by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        return self._process.returncode

    def _ended(self) -> RdzvError:
        code = self._wait(_END_LIMIT_S if self._end_limit_s else 5.0)
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        words = "".join(f"\n  | {line}" for line in lines)
        return RdzvError(f"{self._what} {'does not end' if code is None else ended_by(code)}{words}")


def begin() -> None:
    """A child's beginning and its end. Its argument is the number of the connection's file."""
    connection = Connection(int(sys.argv[1]))
    code = 1
    try:
        sys.path[:] = connection.recv()
        run, arguments = connection.recv()
        run(connection, *arguments)
        code = 0
    except (EOFError, ConnectionError):  # the benchmark has ended
        code = 0
    except RdzvError as error:
        print(error, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # no tidying up of thousands of connections


def serve(connection: Connection, first: Any, answer: Callable[..., Any] = dict) -> None:
    """Say ``first``, then answer what comes as arguments by name, until the connection is closed.

    What did not finish is an answer too.
    """
    connection.send(first)
    while True:
        question: dict[str, Any] = connection.recv()
        try:
            connection.send(answer(**question))
        except DidNotFinish as error:
            connection.send(error)


def die_with_me(number: int = signal.SIGKILL) -> Callable[[], None]:
    """Called by the parent; it returns a function for the child, to use as ``preexec_fn`` or after a fork.

    The child then gets that signal when the thread that started it ends. The arrangement outlives an exec.
    """
    parent = os.getpid()

    def arrange() -> None:
        if not prctl.die_with_parent(parent, number):
            os._exit(1)

    return arrange


# nothing of a benchmark outlives it, even if it is killed


class Guard(Child):
    """While it is open, all that this process starts is the guard's, services of backends included.

    It is a child that, when this process ends, kills every process that carries the mark, frozen ones too, and deletes
    the directory. Marks of parts begin with that of the whole: ``MARK-1`` is part of ``MARK``.
    """

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.directory = Path()
        """For all files: deleted with the guard."""
        self._jobs, self._before = 0, os.environ.get(MARK)
        who = "the process that ends all others with the benchmark"
        super().__init__(who, _guard, self.mark, end_limit_s=_END_LIMIT_S)

    def new_job(self) -> tuple[str, Path]:
        """A mark for one job, and an empty directory."""
        self._jobs += 1
        made = self.directory / f"job-{self._jobs}"
        made.mkdir()
        return f"{self.mark}-{self._jobs}", made

    def __enter__(self) -> Guard:
        try:
            self.directory = self.answer()
        except BaseException:
            self.end()
            raise
        os.environ[MARK] = self.mark
        return self

    def end(self) -> None:
        os.environ.pop(MARK, None)
        if self._before is not None:
            os.environ[MARK] = self._before
        super().end()


def _guard(connection: Connection, mark: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rdzv-bench-", ignore_cleanup_errors=True) as directory:
        connection.send(Path(directory))
        with contextlib.suppress(EOFError, ConnectionError):
            connection.recv()
        end_all(mark)


def environment(mark: str) -> dict[str, str]:
    """The variables for an agent: those of this process without a launcher's, and the mark."""
    return clean_environment() | {MARK: mark}


def end_all(mark: str) -> None:
    """Kill what carries the mark, or that of a part of it; returns when it is gone. Raises ``RdzvError`` if not."""
    deadline = time.monotonic() + _END_LIMIT_S / 2
    while left := marked(mark, parts=True):  # an agent that is killed may have just started a worker
        for pid in left:
            kill(pid)
        if time.monotonic() > deadline:
            raise RdzvError(f"processes {sorted(left)} survived SIGKILL")
        time.sleep(0.02)


# reverse DNS is kept out of the comparison

_NAMES = "RDZV_BENCH_NAMES"
_FILES = {
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n::ffff:127.0.0.1 localhost\n",
}
_PROBE = "import socket, sys; sys.exit(socket.getnameinfo(('::ffff:127.0.0.1', 1, 0, 0), 0)[0] != 'localhost')"
_WAYS = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])
NAMES_APART = "All targets resolve names from a hosts file only, so the cost of slow DNS does not show here."
NAMES_OF_THE_SYSTEM = """\
Names are resolved by the system, as no mount namespace was allowed (`unshare --mount`: root, or user namespaces).
torch's store looks up the name of each client, which may cost its users seconds."""


def names_apart() -> None:
    """Start this command again, in its own mount namespace in which names come only from a hosts file, if allowed.

    torch's servers look up the name of every peer that they accept, on their only thread. They listen on ``[::]``, so a
    client from 127.0.0.1 is ``::ffff:127.0.0.1`` to them, which the usual hosts file does not have: every connection
    costs a question to the name server, and a lost answer five seconds of standstill.
    """
    if _NAMES in os.environ or sys.argv[1:2] != ["bench"]:  # it is again, or called by another program
        return
    os.environ[_NAMES] = "system"
    with tempfile.TemporaryDirectory(prefix="rdzv-bench-") as directory:
        script = Path(directory, "apart")
        for target, text in _FILES.items():
            source = Path(directory, Path(target).name)
            source.write_text(text)
            with script.open("a") as lines:
                lines.write(f"mount --bind '{source}' {target} || exit\n")
        # a mounted file stays when its directory is deleted
        script.write_text(f'{script.read_text()}test "$1" = -c || rm -r "{directory}"\nexec "{sys.executable}" "$@"\n')
        for way in _WAYS:
            command = [*way, "sh", str(script)]
            try:
                allowed = subprocess.run([*command, "-c", _PROBE], capture_output=True, timeout=30, check=False)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if allowed.returncode == 0:
                os.environ[_NAMES] = "file"
                os.execvp(way[0], [*command, "-m", "rdzv_launcher.tools", *sys.argv[1:]])


def names_remark() -> str:
    """What a reader of figures should know about names."""
    return NAMES_APART if os.environ.get(_NAMES) == "file" else NAMES_OF_THE_SYSTEM


# readings of a process and of the machine

_CPUCLOCK_SCHED = 2
"""The kernel's number for the clock of user and system time together, as its scheduler counts it."""


def peak_memory(pid: int) -> float:
    """The largest resident memory of one process so far, in MiB, without its children. 0 once it has ended.

    ``ru_maxrss`` does not show this: it is the largest over the process and every child that it waited for.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0  # a zombie has no memory


def family_cpu_seconds(pid: int) -> float:
    """CPU time so far of a process and everything that lives below it, with what these have started and waited for."""
    pids_of = children_now()
    seconds, below = 0.0, [pid]
    while below:
        each = below.pop()
        stat = read_stat(each)
        if stat is not None:
            seconds += stat.cpu_s
            below += pids_of(each)
    return seconds


def exact_cpu_seconds(pid: int) -> float:
    """CPU time of one process so far, to the nanosecond, without its children.

    Threads that have ended are included; a thread that is running meanwhile is counted up to its last clock interrupt.
    Raises ``OSError`` once the process is gone.
    """
    return time.clock_gettime_ns(~pid << 3 | _CPUCLOCK_SCHED) / 1e9  # how clock_getcpuclockid(3) makes the number


def settled(cpu: Callable[[], float], limit_s: float) -> float:
    """``cpu()`` once it hardly grows any more: what is counted has nothing left to do. After the limit, as it is."""
    quiet_s, end = 0.02, time.monotonic() + limit_s
    before = cpu()
    while True:
        time.sleep(quiet_s)
        now = cpu()
        if now - before < quiet_s / 50 or time.monotonic() > end:
            return now
        before = now


def forget_peak(pid: int) -> float:
    """Reset what ``peak_memory`` measures; returns it, in MiB: what is resident now, if the kernel allows that (as
    root, or for a process of one's own), otherwise the old peak.
    """
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        pass  # some containers do not have this file: the peak of the start stays
    return peak_memory(pid)


def listen_overflows() -> int:
    """Connections lost on this machine so far to full accept queues."""
    names, values = (
        line.split() for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    )
    return int(dict(zip(names, values, strict=True))["ListenOverflows"])
