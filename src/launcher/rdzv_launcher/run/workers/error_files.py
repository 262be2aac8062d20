"""The files in which workers record their exceptions: torch's ``record`` writes them, schedulers read the first one.

A program that uses ``record`` does so in the worker; this module reads the files, and writes one for a scheduler,
without torch.
"""

from __future__ import annotations

import json
import logging
import os
import time
import traceback
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

logger = logging.getLogger(__name__)

_MOST_BYTES = 16 << 20
"""A worker may write there whatever it likes: beyond this, nothing is read."""


class ErrorRecord(Struct, frozen=True):
    """What a worker has recorded."""

    message: str
    """The kind of the exception, and its text."""
    callstack: str
    """Its traceback, of several lines; empty if there is none."""
    timestamp: float
    """When it was recorded, in seconds of this machine's clock; torch writes whole seconds."""


def read_error_file(path: str) -> ErrorRecord | None:
    """What is recorded in the file; None if nothing is, or nothing readable."""
    data = _load(path)
    return None if data is None else _record(data)


def hand_to_scheduler(path: str, exit_code: int, target: str) -> bool:
    """Copy the error file of the worker that failed first to where a scheduler wants it: the agent's own error file.

    The exit code, which the worker could not know, is put in. Returns False if there is nothing to copy, or it cannot
    be written, which is logged: the job's outcome does not depend on it.
    """
    data = _load(path) if target else None
    if data is None:
        return False
    message = data.get("message")
    if exit_code and isinstance(message, dict):
        message["errorCode"] = exit_code
    return _write(target, data)


def record_own_error(error: BaseException, target: str) -> bool:
    """Write the agent's exception to ``target``, in torch's form. False if it cannot be written, which is logged."""
    if not target:
        return False
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    info = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    return _write(target, {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": info}})


def _load(path: str) -> dict[str, Any] | None:
    if not os.path.isfile(path):  # excludes pipes, which would keep us waiting
        return None
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("the error file %s of a worker cannot be read: %s", path, error)
        return None
    return data if isinstance(data, dict) else None


def _record(data: Mapping[str, Any]) -> ErrorRecord | None:
    message = data.get("message")
    if isinstance(message, str):
        return ErrorRecord(message, "", _seconds(data.get("timestamp")))
    if not isinstance(message, dict):
        return None
    info = message.get("extraInfo")
    info = info if isinstance(info, dict) else {}
    return ErrorRecord(
        str(message.get("message", "")), str(info.get("py_callstack", "")), _seconds(info.get("timestamp"))
    )


def _seconds(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0


def _write(target: str, data: Mapping[str, Any]) -> bool:
    """Write in place: the file may be mounted by itself, as Kubernetes does, and then cannot be replaced."""
    try:
        if os.path.isfile(target) and os.path.getsize(target):
            logger.warning("the error file %s, which was there before, is overwritten", target)
        with open(target, "w") as file:
            json.dump(data, file)
    except OSError as error:
        logger.warning("the error file %s cannot be written: %s", target, error.strerror or error)
        return False
    return True
