"""Whether the clock of this machine is kept in step with others."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

from rdzv_launcher.tools.doctor.findings import Finding

_MAXERROR_AT, _STATUS_AT, _SIZE = 24, 40, 256
"""Offsets in ``struct timex`` with 8-byte longs; the size is larger than the struct."""
_UNSYNCHRONISED = 0x40


def clock() -> Iterator[Finding]:
    """What the kernel says about the clock. Source: adjtimex(2)."""
    state = ctypes.create_string_buffer(_SIZE)
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(state) < 0:
        yield Finding("skipped", "clock", "the kernel does not tell")
        return
    (status,) = struct.unpack_from("i", state, _STATUS_AT)
    if status & _UNSYNCHRONISED:
        yield Finding(
            "warning",
            "clock",
            "the kernel says that nothing keeps it in step: times in logs of several nodes will not match, though "
            "rdzv-run itself relies on no clock of another node",
            "Start chrony or systemd-timesyncd, on the host if this is a container.",
        )
        return
    (microseconds,) = struct.unpack_from("l", state, _MAXERROR_AT)
    yield Finding("ok", "clock", f"kept in step, to {microseconds / 1000:.0f} ms at worst")
