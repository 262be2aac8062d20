"""The function and its arguments as a file, for workers that are spawned: what ``multiprocessing`` gives its processes.

Queues, locks and pipes of ``multiprocessing`` and torch's shared tensors may be among the arguments: their descriptors
are collected, and have to be open in each worker under the same number.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import context, popen_spawn_posix, reduction, resource_tracker, spawn
from typing import Any

from rdzv_plugins.errors import UsageError


class _Collecting(popen_spawn_posix.Popen):
    """Takes the place of the process that ``multiprocessing`` is starting."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Note that the worker needs ``fd``; returns its number there."""
        self.descriptors.append(fd)
        return fd


def write_function(
    path: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    results: str,
) -> tuple[int, ...]:
    """Write the call to ``path``; returns the descriptors that belong to it. Raises ``UsageError`` if it cannot."""
    _require_importable(function)
    collecting = _Collecting()
    context.set_spawning_popen(collecting)
    try:
        data = bytes(reduction.ForkingPickler.dumps((function, tuple(arguments), dict(keywords))))
        preparation = _preparation()
        tracker = _tracker()
        with open(path, "xb") as file:
            pickle.dump((preparation, tracker, results), file)
            file.write(data)
    except OSError:
        raise
    except Exception as error:
        raise UsageError(
            f"{name_of(function)} and its arguments cannot be pickled for workers that are spawned: {error}",
            remedy="A function for them is defined in a module, not in another function, and no lambda. Or use "
            "start_method='fork'.",
        ) from error
    finally:
        context.set_spawning_popen(None)
    return (*collecting.descriptors, *([tracker] if tracker >= 0 else []))


def name_of(function: Callable[..., Any] | str) -> str:
    """The function's name for messages."""
    if isinstance(function, str):
        return function
    return getattr(function, "__name__", None) or type(function).__name__


def _preparation() -> dict[str, Any]:
    """What makes an interpreter like this one: ``sys.path``, ``__main__`` and so on."""
    method: Any = multiprocessing.get_start_method(allow_none=True)
    try:
        data: dict[str, Any] = spawn.get_preparation_data("worker")
    finally:
        if method is None:  # it has chosen one for the whole process
            multiprocessing.set_start_method(None, force=True)
    if method is None:
        data.pop("start_method", None)
    data["authkey"] = bytes(data["authkey"])
    return data


def _tracker() -> int:
    """The descriptor of the process that removes shared objects once nobody uses them, if there is one; otherwise -1.

    A worker with such a process of its own would have them removed when it ends.
    """
    fd = getattr(resource_tracker._resource_tracker, "_fd", None)
    return -1 if fd is None else int(fd)


def _require_importable(function: Callable[..., Any]) -> None:
    """Refuse a function of a ``__main__`` that no other interpreter can import: it would not be found there."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "elastic_launch was called while a worker imports the script: it would start workers for ever",
            remedy="Put the call under: if __name__ == '__main__':",
        )
    if getattr(function, "__module__", "") != "__main__":
        return
    main: Any = sys.modules["__main__"]
    path: Any = getattr(main, "__file__", None)
    importable = getattr(main, "__spec__", None) is not None or os.path.isfile(path or "")
    if importable:
        return
    raise UsageError(
        f"{name_of(function)} is defined in a notebook or at a prompt, and workers that are spawned cannot import it",
        remedy="Use start_method='fork' (before this process uses an accelerator), or put the function into a module.",
    )
