"""Importing torch, if a backend or a plug-in needs it: with few garbage collections, and with its C++ part silent."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
from collections.abc import Iterator

from rdzv_plugins.errors import debug_wanted

_LEVEL = "TORCH_CPP_LOG_LEVEL"


@contextlib.contextmanager
def importing_torch() -> Iterator[None]:
    """For code that may import torch in this process; afterwards the workers' variables are as before.

    Hardly anything that 400 modules allocate, or torch's 800, is garbage: fewer collections meanwhile save a tenth of
    the CPU time of starting. What exists then is frozen, so it is not searched again: neither while the job runs, nor
    at the end, where that took 0.4 s.

    torch's C++ part would log stack frames for every lost connection; ours says what it means. It reads the variable
    when it is imported; the workers should have their own level.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    is_quiet = _LEVEL not in os.environ and not debug_wanted()
    if is_quiet:
        os.environ[_LEVEL] = "FATAL"
    try:
        yield
    finally:
        if is_quiet:
            os.environ.pop(_LEVEL, None)
        gc.set_threshold(*thresholds)
        linecache.clearcache()  # source texts that torch has looked up: 1.7 MB that nobody reads again
        gc.freeze()
