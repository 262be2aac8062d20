"""Classes of torch that a flag or a variable asks for. Only then is torch imported."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from rdzv_launcher.run.workers.environment import FILE_TIMER, TIMER_FILE
from rdzv_launcher.run.workers.output.log_files import Destinations, Stream
from rdzv_launcher.run.workers.spec import Streams, WorkersSpec
from rdzv_plugins.errors import PluginError, UsageError
from rdzv_plugins.installed import entry_points

_GROUP = "torchrun.logs_specs"


class ThirdPartyLogs:
    """--logs-specs: a third-party class derived from torch's ``LogsSpecs``, in place of our ``LogFiles``.

    Everything that it decides, it decides as it does under torchrun.
    """

    def __init__(self, spec: WorkersSpec, made: Any = None) -> None:
        """``made`` is such an object, to be used in place of --logs-specs.

        Raises ``UsageError`` if there is no such entry point, ``PluginError`` if the object cannot be created.
        """
        self._name = spec.logs_specs or type(made).__name__
        self._inner: Any = made
        if made:
            return
        found = {each.name: each for each in entry_points(_GROUP)}
        if self._name not in found:
            raise UsageError(
                f"--logs-specs={self._name}: no installed package has such an entry point in the group {_GROUP}",
                remedy=f"There are {', '.join(sorted(found))}." if found else "There is none at all.",
            )
        try:
            self._inner = found[self._name].load()(
                log_dir=spec.log_dir or None,
                redirects=_torchs(spec.redirects),
                tee=_torchs(spec.tee),
                local_ranks_filter=set(spec.shown_ranks) or None,
            )
        except Exception as error:
            raise self._fault(error) from error

    @property
    def root(self) -> str:
        """The directory in which it says the files are."""
        return str(self._inner.root_log_dir)

    def begin(self, variables: Mapping[int, dict[str, str]]) -> Destinations:
        """Return the files of a round; adds to the workers' ``variables``. Raises ``PluginError``."""
        try:
            there = self._inner.reify(variables)
            found = Destinations(
                Stream(dict(there.stdouts), dict(there.tee_stdouts), there.filtered_stdout),
                Stream(dict(there.stderrs), dict(there.tee_stderrs), there.filtered_stderr),
                dict(there.error_files),
            )
        except Exception as error:
            raise self._fault(error) from error
        if not found.stdout.paths.keys() == found.stderr.paths.keys() == variables.keys():
            raise self._fault(ValueError("it does not say where the output of each local rank goes"))
        return found

    def _fault(self, error: Exception) -> PluginError:
        return PluginError(
            f"--logs-specs={self._name}: {type(error).__name__}: {error}",
            remedy="The error is in that class, or in its arguments. Without the flag, torchrun's layout is used.",
        )


def _torchs(streams: Streams) -> Any:
    from torch.distributed.elastic.multiprocessing import Std

    if streams.by_rank is None:
        return Std(int(streams.all_ranks))
    return {rank: Std(int(value)) for rank, value in streams.by_rank.items()}


_INTERVAL_S = 0.1
_OPENS_S, _LOOK_S = 5.0, 0.01


class FileTimer:
    """The watchdog for which workers set themselves deadlines: torch's ``FileTimerServer``, if a variable asks for it.

    The server kills a worker that misses its deadline, and this process too, with the signal that the worker has
    chosen: that is torch's decision. One per agent, for its main thread; each round has a server of its own.
    """

    def __init__(
        self,
        run_id: str,
        environ: Mapping[str, str],
        directory: str,
        log_event: Callable[[str, Any], None] | None = None,
    ) -> None:
        """``directory`` is the agent's own: torch creates the pipe as the umask allows, and others must not read it.

        ``log_event`` is called by the server's thread with what the server does, with torch's arguments.
        """
        self._run_id, self._directory, self._log_event = run_id, directory, log_event
        self._enabled = environ.get(FILE_TIMER) == "1"
        self._given = environ.get(TIMER_FILE)
        self._server: Any = None
        self._path = ""

    def start(self) -> dict[str, str]:
        """Start the server of a round, if one is wanted; returns what is added to the workers' variables.

        Raises ``UsageError`` if no pipe can be created where a variable says.
        """
        self.stop()
        if not self._enabled:
            return {} if self._given is None else {TIMER_FILE: self._given}
        self._path = self._given or os.path.join(self._directory, f"watchdog_timer_{uuid.uuid4()}")
        from torch.distributed.elastic.timer import FileTimerServer

        try:
            if self._given is None:  # a cleaner of temporary files may have removed it
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
            self._server = FileTimerServer(
                self._path, self._run_id, max_interval=_INTERVAL_S, daemon=True, log_event=self._log_event
            )
        except OSError as error:
            raise UsageError(
                f"{TIMER_FILE}={self._path}: cannot create a pipe there: {error.strerror or error}",
                remedy=f"Name a file in a directory where this user may write, or unset {TIMER_FILE}.",
            ) from error
        self._server.start()
        return {TIMER_FILE: self._path}

    def stop(self) -> None:
        """End the server of the finished round, and remove its pipe."""
        if self._server is None:
            return
        server, self._server = self._server, None
        with contextlib.suppress(OSError):
            # the server's thread waits for a first writer, and does not return before there was one
            writer = os.open(self._path, os.O_RDWR | os.O_NONBLOCK)
            deadline = time.monotonic() + _OPENS_S
            while not getattr(server, "_is_client_started", True) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            os.close(writer)
        server.stop()
