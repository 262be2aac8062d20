"""The directories that a launch writes to, checked before anything starts."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile

from rdzv_launcher.console import NO_SPACE
from rdzv_plugins.errors import LimitTooLow, UsageError

logger = logging.getLogger(__name__)

_LITTLE = 100 * 2**20
_PAGE = b"\0" * 4096


def require_temporary() -> str:
    """The directory for temporary files. Raises ``LimitTooLow`` if none can take any."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise LimitTooLow(
            f"no temporary file can be written: {error.strerror}",
            remedy="Free some space there, or name another directory: TMPDIR=DIRECTORY.",
        ) from None


def write_a_page(directory: str) -> None:
    """Find out by trying whether there is room: a quota shows nowhere else. Leaves nothing. Raises ``OSError``."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:  # it has no name, or not for long
        file.write(_PAGE)


def require_log_dir(path: str) -> str:
    """The directory ``path``, or the one in which it would be created. Leaves nothing there.

    Warns if there is little space. Raises ``UsageError`` if nothing can be written, and ``LimitTooLow`` if it is full.
    """
    try:
        there = os.path.abspath(path)
    except FileNotFoundError:
        raise UsageError(
            f"--log-dir={path}: the directory in which this command was started is gone",
            remedy="Start it in one that exists, or give an absolute path.",
        ) from None
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    try:
        write_a_page(there)
        free = shutil.disk_usage(there).free
    except OSError as error:
        kind = LimitTooLow if error.errno in NO_SPACE else UsageError
        raise kind(
            f"--log-dir={path}: nothing can be written in {there}: {(error.strerror or str(error)).lower()}",
            remedy="Give a directory in which this user may write, with space left.",
        ) from None
    if free < _LITTLE:
        logger.warning("--log-dir=%s: only %.0f MiB are free there", path, free / 2**20)
    return there
