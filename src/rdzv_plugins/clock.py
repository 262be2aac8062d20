"""The clock by which a session's life is measured on its node."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds that never jump, and that count on while the machine sleeps if it has such a clock (CLOCK_BOOTTIME).

    All processes of a machine read the same; the numbers mean nothing on another machine, or after a reboot.
    """
    return time.clock_gettime(_CLOCK)


def now_ns() -> int:
    """The same time as ``now``, in nanoseconds."""
    return time.clock_gettime_ns(_CLOCK)
