"""Signals: what was ignored when we started stays ignored (nohup); the rest stops the job and tells why."""

from __future__ import annotations

import logging
import os
import signal
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from rdzv_plugins.errors import UsageError

logger = logging.getLogger(__name__)


def install(names: str) -> None:
    """Handle the signals in ``names`` (comma-separated, as --signals-to-handle) from now on, during the rendezvous too.

    torch's agent installs its own handlers for the same signals when it starts workers, and reads
    from the environment for which; a signal ignored at start is left out there. Raises ``UsageError``.
    """
    kept = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            number = signal.Signals[name]
        except KeyError:
            raise UsageError(f"--signals-to-handle: there is no signal {name!r}") from None
        if signal.getsignal(number) is signal.SIG_IGN:
            continue
        try:
            signal.signal(number, _raise)
        except (OSError, ValueError) as error:
            raise UsageError(f"--signals-to-handle: {name} cannot be handled: {error}") from error
        kept.append(name)
    logger.debug("handling signals: %s", ", ".join(kept) or "none")
    if not names.strip(" ,"):
        raise UsageError("--signals-to-handle is empty", remedy="Name at least one signal, for example SIGTERM.")
    # torch fails on an empty list. SIGUSR2 would end this process anyhow
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(kept) or "SIGUSR2"


def _raise(number: int, frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    raise SignalException(f"got {name}", sigval=signal.Signals(number))


def ignore_all() -> None:
    """From here on the process is ending: a further signal must not interrupt the clean-up."""
    for name in filter(None, os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "").split(",")):
        signal.signal(signal.Signals[name], signal.SIG_IGN)
