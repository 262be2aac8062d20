"""The function of a call: as a file for workers that are spawned, and the part of a worker that calls it.

The file is what ``multiprocessing`` gives its processes. Its queues, locks and pipes and torch's shared tensors may be
among the arguments: their descriptors are collected, and have to be open in each worker under the same number.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import string
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import context, popen_spawn_posix, reduction, resource_tracker, spawn
from typing import Any

from rdzv_launcher.python_api.results import Results
from rdzv_launcher.run.workers.environment import ERROR_FILE
from rdzv_launcher.run.workers.failures import record_own_error
from rdzv_launcher.run.workers.run_path import LocalExitBarrier
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
            remedy="Define the function in a module, not in another function or as a lambda. Or use "
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
    if getattr(main, "__spec__", None) is not None or os.path.isfile(path or ""):
        return
    raise UsageError(
        f"{name_of(function)} is defined in a notebook or at a prompt, so spawned workers cannot import it",
        remedy="Use start_method='fork' (before this process uses an accelerator), or put the function into a module.",
    )


@dataclass(frozen=True)
class Call:
    """The function and its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    results: str = ""
    """The directory for the results."""

    def run(self, local_rank: int) -> int:
        """Be the worker, as a process of ``multiprocessing`` is one; returns its exit code.

        The exception of the function is printed, and recorded in the worker's error file as torch's ``record`` does.
        """
        process = multiprocessing.Process(target=self._call, args=(local_rank,), name=f"worker-{local_rank}")
        process._parent_pid = os.getppid()  # type: ignore[attr-defined]
        code: int = process._bootstrap()  # type: ignore[attr-defined]
        return code

    def _call(self, local_rank: int) -> None:
        results, barrier = Results(self.results), LocalExitBarrier(f"{self.results}/barrier")
        try:
            faulthandler.enable(all_threads=True)
        except (AttributeError, OSError, ValueError):  # a notebook's, which is not a file
            pass
        try:
            try:
                value = self.function(*(_for_rank(each, local_rank) for each in self.arguments), **self.keywords)
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise
                value = None
            results.keep(value)
        except Exception as error:
            _keep_error(error, results)
            raise
        barrier.wait()


def not_loaded(error: BaseException, results: str) -> None:
    """The function could not be loaded in this process: handle this as if it had raised."""
    sys.stderr.write(_keep_error(error, Results(results)))
    sys.stderr.flush()


def _keep_error(error: BaseException, results: Results) -> str:
    """Keep the error in the worker's error file and for the caller; returns its traceback as text."""
    record_own_error(error, os.environ.get(ERROR_FILE, ""))
    text = "".join(traceback.format_exception(error))
    results.keep_raised(error, text)
    return text


def _for_rank(argument: Any, local_rank: int) -> Any:
    """Replace ``${local_rank}`` in texts by the rank, and ``$$`` by ``$``, as torch does, even for functions."""
    return string.Template(argument).safe_substitute(local_rank=local_rank) if isinstance(argument, str) else argument
