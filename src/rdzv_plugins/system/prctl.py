"""What Linux lets a process say about itself and its children. Source: prctl(2)."""

from __future__ import annotations

import ctypes
import os
import signal

_PDEATHSIG, _SET_NAME, _GET_NAME, _CHILD_SUBREAPER, _PTRACER = 1, 15, 16, 36, 0x59616D61

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans from now on: it has to wait for them."""
    _prctl(_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> bool:
    """Have this process get that signal when the thread of ``parent`` that started it ends, even after an exec.

    False if ``parent`` has ended already, which is too late for the signal.
    """
    _prctl(_PDEATHSIG, int(number))
    return os.getppid() == parent


def let_trace(pid: int) -> None:
    """If Yama lets only ancestors read a process (py-spy, debuggers), also allow ``pid`` and what it starts."""
    _prctl(_PTRACER, pid)


def set_name(name: str) -> None:
    """Set the name that ``ps`` shows for this process; 15 bytes at most."""
    _prctl(_SET_NAME, name.encode())


def get_name() -> str:
    """The name that ``ps`` shows for this process."""
    name = ctypes.create_string_buffer(16)
    _prctl(_GET_NAME, name)
    return name.value.decode(errors="replace")


def _prctl(option: int, argument: int | bytes | ctypes.Array[ctypes.c_char]) -> None:
    number = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    _libc.prctl(option, number, *[ctypes.c_ulong(0)] * 3)
