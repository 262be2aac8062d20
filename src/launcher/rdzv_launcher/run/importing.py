"""Importing torch, where a backend or a plug-in needs it: with few collections, and with a C++ part that is silent."""

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
    """Around whatever may import it in this process; the workers' variables are as before afterwards."""
    with _frugal(), _quiet():
        yield


@contextlib.contextmanager
def _frugal() -> Iterator[None]:
    """Import with a lazy garbage collector: next to nothing of what 400 modules allocate, or torch's 800, is garbage.

    Fewer collections meanwhile save a tenth of the CPU time of starting. Frozen, what is there is not
    looked through again: not while the job runs, and not at the end, where that took 0.4 s.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        linecache.clearcache()  # source texts that torch has looked up: 1.7 MB that nobody reads again
        gc.freeze()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Import torch with a C++ part that does not log stack frames for every lost connection; ours says what it means.

    torch reads the variable when it is imported; the workers shall have its own level.
    """
    if _LEVEL in os.environ or debug_wanted():
        yield
        return
    os.environ[_LEVEL] = "FATAL"
    try:
        yield
    finally:
        os.environ.pop(_LEVEL, None)
