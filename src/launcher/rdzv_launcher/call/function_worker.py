"""The part of a worker that calls the function, and keeps what it returns or raises."""

from __future__ import annotations

import faulthandler
import os
import string
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rdzv_launcher.call.results import Results
from rdzv_launcher.run.workers.environment import ERROR_FILE
from rdzv_launcher.run.workers.failures import record_own_error
from rdzv_launcher.run.workers.run_path import LocalExitBarrier


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
        import multiprocessing

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
