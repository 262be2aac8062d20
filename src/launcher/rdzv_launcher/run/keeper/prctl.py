"""What Linux lets a process say of itself and its children."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_GET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 16, 36

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on this process is the parent of its descendants' orphans: it has to wait for them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """This process gets SIGKILL when its parent ends, also after an exec. The caller checks that it still lives."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def set_name(name: str) -> None:
    """How ``ps`` names this process; 15 bytes at most."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def get_name() -> str:
    """How ``ps`` names this process."""
    name = ctypes.create_string_buffer(16)
    _libc.prctl(_PR_GET_NAME, name, 0, 0, 0)
    return name.value.decode(errors="replace")


def flush_c_streams() -> None:
    """Write what C code has buffered: after a fork it would be written twice."""
    _libc.fflush(None)
