"""A program started as a child of this process that ends with it, in a session of its own, as torch starts its workers.

This module contains what happens between fork and exec. It is run by the supervisor, which has one thread.
"""

from __future__ import annotations

import gc
import marshal
import os
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rdzv_launcher.run.supervisor.in_worker import arrange
from rdzv_launcher.run.supervisor.messages import Loop
from rdzv_plugins.system import prctl

RESTORED = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""Signals that Python ignores for itself: programs that it starts get them unchanged."""
_NEVER_RUN = 255


class NotArranged(Exception):
    """An ``OSError`` before the program was reached; ``what`` is the stream that could not be opened."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what)
        self.what, self.number = what, number


def redirect(stdout: str, stderr: str) -> None:
    """Redirect standard output and error to these files; an empty path leaves a stream. Raises ``NotArranged``."""
    for fd, name, path in ((1, "stdout", stdout), (2, "stderr", stderr)):
        if path:
            try:
                # appended to: what truncates the file later (logrotate) leaves no hole
                append = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
                file = os.open(path, append | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
                if file == fd:  # it had been closed
                    os.set_inheritable(fd, True)
                else:
                    os.dup2(file, fd)
                    os.close(file)
            except OSError as error:
                raise NotArranged(name, error.errno or 0) from None


def spawn(
    command: Sequence[str],
    environment: Mapping[str, str],
    defaults: Iterable[int],
    arrange: Callable[[], None],
    instead: Callable[[], None] | None = None,
) -> tuple[int, int]:
    """Start a program; returns its pid, and a descriptor for ``when_known``. Raises ``OSError`` if the fork fails.

    ``defaults`` are the signals that are reset to their default action in it. ``arrange`` is called in the child, and
    so is ``instead``, which never returns, in place of the program.
    """
    parent = os.getpid()
    outcome, report = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(outcome)
        os.close(report)
        raise
    if pid:
        os.close(report)
        os.set_blocking(outcome, False)
        return pid, outcome
    what, number = "exec", 0
    try:
        if prctl.die_with_parent(parent):
            os.setsid()
            for each in defaults:
                signal.signal(each, signal.SIG_DFL)
            arrange()
            if instead is not None:
                os.close(report)
                instead()
            os.execvpe(command[0], list(command), dict(environment))
    except NotArranged as error:
        what, number = error.what, error.number
    except OSError as error:
        number = error.errno or 0
    except ValueError:  # a NUL in the command or environment
        what = "value"
    finally:
        os.write(report, marshal.dumps((what, number)))
        os._exit(_NEVER_RUN)
    raise AssertionError("not reached")


def when_known(loop: Loop, outcome: int, tell: Callable[[tuple[str, int] | None], None]) -> None:
    """Call ``tell`` when it is known what has become of a ``spawn``: None if the program runs, else what and errno."""

    def look() -> None:
        try:
            data = os.read(outcome, 4096)
        except BlockingIOError:
            return
        loop.forget(outcome)
        os.close(outcome)
        tell(marshal.loads(data) if data else None)

    loop.watch(outcome, look)


def let_go_of_handlers() -> None:
    """Reset signals that have a Python handler to their default action; ignored signals stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors except the standard ones and those in ``kept``.

    If somebody has started a thread in this fork, as a debugger does, the descriptors stay in use, for nothing: their
    owner may close them later, and would close what has their numbers by then.
    """
    null = os.open(os.devnull, os.O_RDWR) if len(os.listdir("/proc/self/task")) > 1 else -1
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            try:
                os.close(fd) if null < 0 else os.dup2(null, fd, inheritable=False)
            except OSError:  # the descriptor of the list itself
                pass


def run_function(function: Callable[[], int], environment: Mapping[str, str], kept: Collection[int], name: str) -> None:
    """Let go of what belongs to the supervisor, run the function, and end with the exit code that it returns.

    Of the descriptors beyond the standard ones, those in ``kept`` stay open. ``name`` is the name of the process.
    """
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in RESTORED:  # as Python sets them
            signal.signal(number, signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        close_all_but(kept)
        prctl.set_name(name)
        os.environ.clear()
        os.environ.update(environment)
        arrange()
        gc.enable()  # existing objects stay frozen: it is for others to clean them up
        code = function()
    except BaseException:  # an error of ours: those of the function end in its exit code
        import traceback  # a template, which imports this module, has no use for it

        traceback.print_exc()
    finally:
        os._exit(code)
