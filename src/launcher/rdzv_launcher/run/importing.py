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
    """For code that may import torch in this process; afterwards the workers' variables are as before."""
    with _frugal(), _quiet():
        yield


@contextlib.contextmanager
def _frugal() -> Iterator[None]:
    """Import with little garbage collection: hardly anything that 400 modules allocate, or torch's 800, is garbage.

    Fewer collections meanwhile save a tenth of the CPU time of starting. What exists then is frozen, so it is not
    searched again: neither while the job runs, nor at the end, where that took 0.4 s.
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
    """Import torch so that its C++ part does not log stack frames for every lost connection; ours says what it means.

    torch reads the variable when it is imported; the workers should have their own level.
    """
    if _LEVEL in os.environ or debug_wanted():
        yield
        return
    os.environ[_LEVEL] = "FATAL"
    try:
        yield
    finally:
        os.environ.pop(_LEVEL, None)
