"""torch's ``LogsSpecs`` with our part added: the plug-ins' environment and the capture of stderr.

torch calls ``reify`` with the environments of the workers it is about to start, and fills in some
itself there; it is the one place where an agent's user may add to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from rdzv_launcher.run.monitor import WorkerMonitor


class WorkerLogs(LogsSpecs):  # type: ignore[misc]
    """Wraps the ``LogsSpecs`` in use: torch's default, or that of --logs-specs."""

    def __init__(
        self,
        inner: LogsSpecs,
        monitor: WorkerMonitor | None,
        extra_env: Callable[[dict[str, str]], Mapping[str, str]],
    ) -> None:
        super().__init__()
        self._inner = inner
        self._monitor = monitor
        self._extra_env = extra_env

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Set up the logs as torch does. Without a monitor, stderr is left alone: a function cannot write to a pipe."""
        for env in envs.values():
            env.update(self._extra_env(dict(env)))
        destinations = self._inner.reify(envs)
        if self._monitor is not None:
            destinations.stderrs = self._monitor.attach(destinations.stderrs)
        return destinations

    @property
    def root_log_dir(self) -> str:
        return str(self._inner.root_log_dir)
