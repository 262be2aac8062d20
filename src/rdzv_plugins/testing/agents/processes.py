"""What each process that a test starts needs: a clean environment, and a mark."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from rdzv_plugins.linux.children import all_pids
from rdzv_plugins.linux.process_stat import read_stat

MARK = "RDZV_TEST_MARK"
"""The variable that identifies the processes of a test."""


_CONCERN = (
    *("PET_", "RDZV_", "TORCHELASTIC_"),
    *("SLURM_", "OMPI_", "PMIX_", "FLUX_", "PBS_", "SM_", "TORCHX_"),  # a launch reads those of schedulers, too
)
_CONCERN_ALSO = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "TRAINING_JOB_NAME")


def clean_environment() -> dict[str, str]:
    """The variables of this process, except those that concern the launcher."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_CONCERN) and k not in _CONCERN_ALSO}
    return clean | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def wait_until(condition: Callable[[], Any], timeout: float, what: Callable[[], str]) -> Any:
    """Poll for a state of the outside world that nobody can notify us of; returns what ``condition`` returned.

    Raises ``AssertionError`` with ``what()`` after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s: {what()}")
        time.sleep(0.05)
    return value


def marked(mark: str, *, parts: bool = False) -> dict[int, str]:
    """The living processes that were started with ``mark``: pid to command line.

    ``parts``: also those marked as a part of it, for example ``MARK-1``.
    """
    found = {}
    whole = f"{MARK}={mark}".encode()
    for pid in all_pids():
        try:
            variables = _read(f"/proc/{pid}/environ")
            if whole not in variables:  # by which all others are found: this is asked for thousands of times
                continue
            ours = any(each == whole or (parts and each.startswith(whole + b"-")) for each in variables.split(b"\0"))
            if ours and (stat := read_stat(pid)) is not None and stat.lives:
                found[pid] = _read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ").decode()
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def kill(pid: int) -> None:
    """Kill a process with SIGKILL, if it is still there."""
    send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may end by itself at any time: nothing happens if it has."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
