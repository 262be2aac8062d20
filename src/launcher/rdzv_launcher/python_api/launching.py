"""``elastic_launch``: runs a function or a program in the workers of a job, called from Python like torch's."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from types import FrameType
from typing import Any

from rdzv_launcher.python_api.agent import Function, LaunchAnswer, LaunchedAgent, Order, interpreter
from rdzv_launcher.python_api.config import LaunchConfig, as_ours, blaming_fields, has_own_logs, options_of
from rdzv_launcher.python_api.function import Call, name_of, write_function
from rdzv_launcher.python_api.results import (
    AgentLost,
    ResultLost,
    Results,
    WorkersFailed,
    WorkerTraceback,
    launch_stopped,
    workers_failed,
)
from rdzv_launcher.run.run_directory import RunDirectory
from rdzv_launcher.run.signals import read
from rdzv_plugins.errors import Preempted, RdzvError, UsageError

_SPAWNED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spawned.py")
_PATIENCE_S = 30.0


class elastic_launch:  # torch's name
    """Runs a function, or a program, in the workers of this node, and waits for the job.

    ::

        results = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2), train)(0.1, epochs=3)

    Call it in one process on each node, with the same settings. It may be called in any thread, any number of times; it
    leaves nothing behind in this process. Signals are handled if it is called in the main thread.
    """

    def __init__(
        self, config: Any, entrypoint: Callable[..., Any] | str | None, health_check_server: Any = None
    ) -> None:
        """``config``: a ``LaunchConfig``, or torch's; ``entrypoint``: a function, or the name of a program.

        ``health_check_server`` is not supported. All mistakes are found when the object is called.
        """
        self._config, self._entrypoint, self._health = config, entrypoint, health_check_server

    def __call__(self, *arguments: Any, **keywords: Any) -> dict[int, Any]:
        """What the workers of this node have returned, by global rank; for a program, nothing.

        Raises ``WorkersFailed`` when the job has failed, ``KeyboardInterrupt`` after SIGINT and ``LaunchStopped`` after
        another of ``signals_to_handle``; if that was a notice (``rdzv_configs['preempt_grace']``), ``Preempted`` unless
        the job was done within the grace. It also raises every other ``RdzvError`` that ends ``rdzv-run``:
        ``UsageError`` for a mistake, the errors of the rendezvous. By then the workers have ended.
        """
        if sys.platform == "win32":
            raise RdzvError("elastic_launch does not run on Windows", remedy="Use Linux (also under WSL).")
        if self._health is not None:
            raise UsageError("elastic_launch does not support a health_check_server", remedy="Leave it out.")
        if not callable(self._entrypoint) and not (isinstance(self._entrypoint, str) and self._entrypoint):
            raise UsageError(
                f"elastic_launch was given {self._entrypoint!r} to run",
                remedy="Give it a function, or the name of a program.",
            )
        with contextlib.ExitStack() as at_end:
            directory = at_end.enter_context(RunDirectory()).path
            try:
                return _Launch(as_ours(self._config), self._entrypoint, directory).run(arguments, keywords)
            except WorkersFailed as error:
                # it contains error files, which a caller decorated with torch's ``record`` hands on
                weakref.finalize(error, at_end.pop_all().close)
                raise
            except RdzvError as error:
                blaming_fields(error)
                if error.remedy and sys.version_info >= (3, 11):
                    error.add_note(error.remedy)  # what a traceback ends with
                raise


class _Launch:
    """One call of ``elastic_launch``."""

    def __init__(self, config: LaunchConfig, entrypoint: Callable[..., Any] | str, directory: str) -> None:
        self._config, self._entrypoint, self._directory = config, entrypoint, directory
        self._results = Results(f"{directory}/results")
        os.mkdir(self._results.directory, 0o700)

    def run(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[int, Any]:
        order, function = self._prepare(arguments, keywords)
        notices = str(self._config.rdzv_configs.get("notice_signals", "")).replace(":", ",")
        signals = RelayedSignals(self._config.signals_to_handle, notices)
        with signals.handled():
            agent = LaunchedAgent(order, function)
            try:
                signals.pass_on_to(agent.pid)
                agent.wait()
            finally:
                signals.pass_on_to(0)
                patience = self._config.shutdown_timeout
                agent.end(_PATIENCE_S if patience is None else patience)
        return self._read(agent, signals.arrived)

    def _prepare(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Order, Function | None]:
        """Prepare the launch. Raises ``UsageError``."""
        config = self._config
        options = options_of(config)
        options.log_dir = options.log_dir or f"{self._directory}/logs"  # here the error files outlive the launch
        options.training_script = _literally(_SPAWNED)
        parts: dict[str, Any] = {"prefix_template": config.log_line_prefix_template or ""}
        if has_own_logs(config.logs_specs):
            parts["logs_specs"] = _pickled_logs(config.logs_specs)
        function: Function | None = None
        if isinstance(self._entrypoint, str):
            if keywords:
                raise UsageError(
                    f"{self._entrypoint} is a program, which takes no keyword arguments: {', '.join(keywords)}"
                )
            options.no_python, options.training_script = True, self._entrypoint
            options.training_script_args = list(map(str, arguments))
        elif config.start_method == "fork":
            function = Call(self._entrypoint, tuple(arguments), dict(keywords), self._results.directory).run
        else:
            file = f"{self._directory}/function"
            parts["descriptors"] = write_function(file, self._entrypoint, arguments, keywords, self._results.directory)
            parts["command"] = (*interpreter(), "-u", _literally(_SPAWNED), _literally(file), "${local_rank}")
            if config.start_method == "forkserver":
                parts["forkserver"] = _preloaded()
        return Order(options, self._directory, os.getpid(), path=tuple(sys.path), **parts), function

    def _read(self, agent: LaunchedAgent, arrived: signal.Signals | None) -> dict[int, Any]:
        """The results of the launch. Raises its error if it has one."""
        answer = agent.answer()
        if answer is not None and arrived in answer.notices:  # the launch has decided how it ended
            arrived = None
        if answer is not None and isinstance(answer.error, Preempted):
            raise answer.error
        number = arrived or (signal.Signals(answer.signal) if answer is not None and answer.signal else None)
        if number is signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise launch_stopped(number)
        if answer is None:
            raise AgentLost(f"the process of the launch (pid {agent.pid}) {agent.how_it_ended}")
        if answer.error is not None:
            raise answer.error
        if answer.first is not None:
            self._raise_failure(answer)
        if isinstance(self._entrypoint, str):
            return {}
        return {rank: self._returned(rank, pid) for rank, pid in sorted(answer.pids.items())}

    def _raise_failure(self, answer: LaunchAnswer) -> None:
        assert answer.first is not None
        first = answer.failures[answer.first]
        also = "".join(f"; also rank {rank}" for rank in answer.failures if rank != answer.first)
        says = f": {first.summary}" if first.record is not None else ""
        text = f"{name_of(self._entrypoint)}: {answer.text}{says}{also}"
        error = workers_failed(text, name_of(self._entrypoint), answer.failures, answer.first)
        cause = self._results.raised(first.pid) if answer.first_here else None
        if cause is None and first.traceback:
            cause = WorkerTraceback(first.traceback)
        raise error from cause

    def _returned(self, rank: int, pid: int) -> Any:
        if not self._results.has(pid):
            raise ResultLost(
                f"{name_of(self._entrypoint)}: rank {rank} (pid {pid}) ended with exit code 0 before the function "
                "returned",
                remedy="Do not call os._exit in it.",
            )
        try:
            return self._results.returned(pid)
        except Exception as error:
            raise ResultLost(
                f"{name_of(self._entrypoint)}: cannot read what rank {rank} returned: {type(error).__name__}: {error}"
            ) from error


def _literally(path: str) -> str:
    """Escape a path: in a worker's command ``$`` begins something that is replaced."""
    return path.replace("$", "$$")


def _preloaded() -> tuple[str, ...]:
    """What was given to ``multiprocessing.set_forkserver_preload``; never empty."""
    given = getattr(forkserver._forkserver, "_preload_modules", ())
    return tuple(each for each in given if each != "__main__") or ("multiprocessing.spawn",)


def _pickled_logs(specs: Any) -> bytes:
    try:
        return pickle.dumps(specs)
    except Exception as error:
        raise UsageError(
            f"LaunchConfig.logs_specs: a {type(specs).__qualname__} cannot be pickled for the process of the launch: "
            f"{error}"
        ) from error


class RelayedSignals:
    """Passes the caller's signals on to the launch. One per call.

    In the main thread these are the caller's signals; in others there are none, as with torch.
    """

    def __init__(self, names: str, notices: str = "") -> None:
        """``names``, and the signals that are a notice besides them: both comma-separated. Raises ``UsageError``."""
        self._numbers = dict.fromkeys(read(names) + (read(notices, "--notice-signals") if notices else []))
        self._pid = 0
        self.arrived: signal.Signals | None = None
        """The first signal that has arrived."""

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle them within this context, except ignored ones; afterwards everything is as before."""
        before: dict[signal.Signals, Any] = {}
        try:
            if threading.current_thread() is threading.main_thread():
                for number in self._numbers:
                    handler = signal.getsignal(number)
                    if handler is not signal.SIG_IGN and handler is not None:  # None: a handler not set by Python
                        before[number] = signal.signal(number, self._on_signal)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def pass_on_to(self, pid: int) -> None:
        """Pass them on to this process from now on; 0: to none. It also gets those that arrived before."""
        self._pid = pid
        if self.arrived is not None:
            self._send(self.arrived)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.arrived is None:
            self.arrived = signal.Signals(number)
        self._send(number)

    def _send(self, number: int) -> None:
        if self._pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
