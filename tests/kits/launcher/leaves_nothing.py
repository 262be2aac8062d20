"""Calls of ``elastic_launch``, well or not; prints what they must not change in their process, before and after."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from kits.launcher import called
from rdzv_launcher import LaunchConfig, WorkersFailed, elastic_launch
from rdzv_plugins.errors import UsageError


def state() -> dict[str, Any]:
    subreaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(subreaper), 0, 0, 0)
    mask = os.umask(0o22)
    os.umask(mask)
    me = os.getpid()
    return {
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "threads": sorted(os.listdir("/proc/self/task")),
        "children": Path(f"/proc/{me}/task/{me}/children").read_text(),
        "signals": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": mask,
        "subreaper": subreaper.value,
        "frozen": gc.get_freeze_count(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "temporary": os.listdir(tempfile.gettempdir()),
    }


def call(method: str) -> None:
    config = LaunchConfig(1, 1, 1, max_restarts=1, shutdown_timeout=5, start_method=method)
    assert elastic_launch(config, called.fails_at_first)() == {0: "1"}
    for nproc, error, cause in ((1, WorkersFailed, "ValueError('on purpose')"), (-1, UsageError, "None")):
        try:
            elastic_launch(LaunchConfig(1, 1, nproc, max_restarts=0, start_method=method), called.raises)("on purpose")
        except error as raised:
            found = repr(raised.__cause__)
        else:
            found = "it has not failed"
        assert found == cause


def main() -> None:
    before = state()
    for _ in range(3):
        for method in ("spawn", "fork"):
            call(method)
    gc.collect()
    print(json.dumps([before, state()]))


if __name__ == "__main__":
    main()
