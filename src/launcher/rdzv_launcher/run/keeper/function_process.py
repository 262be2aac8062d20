"""A worker that is a fork of the keeper and runs a function: it becomes a Python process like its caller's."""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable, Collection, Mapping

from rdzv_launcher.run.keeper.forked import close_all_but
from rdzv_launcher.run.keeper.in_worker import arrange
from rdzv_launcher.run.keeper.worker_process import RESTORED
from rdzv_plugins.linux import prctl


def run(function: Callable[[], int], environment: Mapping[str, str], kept: Collection[int], name: str) -> None:
    """Let go of what belongs to the keeper, run the function, and end with the exit code that it returns.

    Of the descriptors beyond the standard ones, those in ``kept`` stay open. ``name`` is the name of the process.
    """
    code = 1
    try:
        _be_no_keeper(kept)
        prctl.set_name(name)
        os.environ.clear()
        os.environ.update(environment)
        arrange()
        gc.enable()  # existing objects stay frozen: it is for others to clean them up
        code = function()
    except BaseException:  # an error of ours: those of the function end in its exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def _be_no_keeper(kept: Collection[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in RESTORED:  # as Python sets them
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    close_all_but(kept)
