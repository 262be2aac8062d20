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


def call() -> None:
    for method in ("spawn", "fork"):
        assert elastic_launch(alone(1, start_method=method), called.returns)(1) == {0: 1}
    try:
        elastic_launch(alone(1, start_method="fork"), called.raises)("on purpose")
    except WorkersFailed:
        pass
    else:
        raise AssertionError("it has not failed")
    try:
        elastic_launch(alone(-1), called.returns)(1)
    except UsageError:
        pass
    else:
        raise AssertionError("it is a mistake")


def alone(nproc: int, **others: Any) -> LaunchConfig:
    return LaunchConfig(1, 1, nproc, max_restarts=0, shutdown_timeout=5, **others)


def main() -> None:
    before = state()
    for _ in range(5):
        call()
    gc.collect()
    print(json.dumps(before))
    print(json.dumps(state()))


if __name__ == "__main__":
    main()
