"""What Linux lets a process say of itself and its children. Source: prctl(2)."""

from __future__ import annotations

import ctypes
import signal

_PDEATHSIG, _SET_NAME, _GET_NAME, _CHILD_SUBREAPER, _PTRACER = 1, 15, 16, 36, 0x59616D61

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on this process is the parent of its descendants' orphans: it has to wait for them."""
    _prctl(_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """This process gets that signal when the thread that has started it ends, also after an exec.

    The caller checks that its parent still lives.
    """
    _prctl(_PDEATHSIG, int(number))


def let_trace(pid: int) -> None:
    """Where Yama lets only ancestors read a process (py-spy, debuggers), this one too, and what it starts."""
    _prctl(_PTRACER, pid)


def set_name(name: str) -> None:
    """How ``ps`` names this process; 15 bytes at most."""
    _prctl(_SET_NAME, name.encode())


def get_name() -> str:
    """The name by which ``ps`` shows this process."""
    name = ctypes.create_string_buffer(16)
    _prctl(_GET_NAME, name)
    return name.value.decode(errors="replace")


def _prctl(option: int, argument: int | bytes | ctypes.Array[ctypes.c_char]) -> None:
    number = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
    _libc.prctl(option, number, *[ctypes.c_ulong(0)] * 3)
