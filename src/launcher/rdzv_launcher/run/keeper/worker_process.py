"""A program started as a child of this process that ends with it, in a session of its own, as torch starts its workers.

This module contains what happens between fork and exec. It is run by the keeper, which has one thread.
"""

from __future__ import annotations

import marshal
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence

from rdzv_plugins.linux import prctl

RESTORED = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""Signals that Python ignores for itself: programs that it starts get them unchanged."""
_NEVER_RUN = 255


class NotArranged(Exception):
    """An ``OSError`` before the program was reached; ``what`` is the stream that could not be opened."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what)
        self.what, self.number = what, number


def redirect(stdout: str, stderr: str) -> None:
    """Redirect standard output and error of this process to these files; an empty path leaves a stream unchanged.

    Raises ``NotArranged``.
    """
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
    """Start a program; returns its pid, and a descriptor for ``outcome``. Raises ``OSError`` if the fork fails.

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
        prctl.die_with_parent()
        if os.getppid() == parent:
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


def outcome(fd: int) -> tuple[str, int] | None:
    """None if the program runs, else what failed and its errno. Raises ``BlockingIOError`` if that is not known yet."""
    data = os.read(fd, 4096)
    if not data:
        return None
    what, number = marshal.loads(data)
    return what, number
