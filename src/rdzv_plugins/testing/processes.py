"""What each process that a test starts needs: a clean environment, a terminal's signals, and a mark to find it by."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from rdzv_plugins.system.processes import all_pids, command, read_file, read_stat

MARK = "RDZV_TEST_MARK"
"""The variable that identifies the processes of a test."""

_CONCERN = (
    *("PET_", "RDZV_", "TORCHELASTIC_"),
    *("SLURM_", "OMPI_", "PMIX_", "FLUX_", "PBS_", "SM_", "TORCHX_"),  # a launch reads those of schedulers, too
)
_CONCERN_ALSO = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX", "TRAINING_JOB_NAME")
_OF_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def clean_environment() -> dict[str, str]:
    """The variables of this process, except those that concern the launcher."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_CONCERN) and k not in _CONCERN_ALSO}
    return clean | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def default_signals() -> None:
    """Set signals as a terminal does: CI, nohup and background jobs start us with some ignored."""
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_DFL)


def before_exec() -> Callable[[], None] | None:
    """The ``preexec_fn`` of a process that should have ``default_signals``; None if it has them anyway.

    A new program has the default for everything that is not ignored. Running anything before that takes a copy of this
    process instead of a mere start: with torch imported, that is 10 ms instead of 1.
    """
    ignored = any(signal.getsignal(number) is signal.SIG_IGN for number in _OF_TERMINALS)
    return default_signals if ignored else None


def marked(mark: str, *, parts: bool = False, variable: str = MARK) -> dict[int, str]:
    """The living processes that were started with ``mark``: pid to command line.

    ``parts``: also those marked as a part of it, for example ``MARK-1``.
    """
    found = {}
    whole = f"{variable}={mark}".encode()
    for pid in all_pids():
        variables = read_file(pid, "environ")  # none if it has just ended, or is another user's
        if whole not in variables:  # by which all others are found: this is asked for thousands of times
            continue
        ours = any(each == whole or (parts and each.startswith(whole + b"-")) for each in variables.split(b"\0"))
        text = command(pid)  # first, so that what lives now was there then
        if ours and (stat := read_stat(pid)) is not None and stat.lives:
            found[pid] = text
    return found


def kill(pid: int) -> None:
    """Kill a process with SIGKILL, if it is still there."""
    send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may end by itself at any time: nothing happens if it has."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
