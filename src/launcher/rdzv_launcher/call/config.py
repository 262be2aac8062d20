"""The settings of a launch from Python. Names and defaults are those of torch's class, which is accepted, too."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdzv_launcher.run.command_line.torchrun import SIGNALS
from rdzv_launcher.run.workers.spec import Std
from rdzv_plugins.errors import UsageError


@dataclass(frozen=True)
class DefaultLogsSpecs:
    """Where the workers' output goes, as with --log-dir, --redirects, --tee and --local-ranks-filter."""

    log_dir: str | None = None
    """The directory for log files; empty: a temporary directory."""
    redirects: Std | Mapping[int, Std] = Std.NONE
    """The streams that go to files, for all workers or by local rank."""
    tee: Std | Mapping[int, Std] = Std.NONE
    """The streams that go to files and are also shown, for all workers or by local rank."""
    local_ranks_filter: set[int] | None = None
    """The local ranks whose output is shown; None: all."""

    @property
    def root_log_dir(self) -> str:
        """For torch's ``launch_agent``, which takes our ``LaunchConfig``, too: the directory of the files."""
        return str(self._of_torch.root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """The same: the files of a round."""
        return self._of_torch.reify(envs)

    @functools.cached_property
    def _of_torch(self) -> Any:
        from torch.distributed.elastic import multiprocessing

        def torchs(streams: Std | Mapping[int, Std]) -> Any:
            if isinstance(streams, Mapping):
                return {rank: multiprocessing.Std(int(each)) for rank, each in streams.items()}
            return multiprocessing.Std(int(streams))

        return multiprocessing.DefaultLogsSpecs(
            self.log_dir, torchs(self.redirects), torchs(self.tee), self.local_ranks_filter
        )


@dataclass
class LaunchConfig:
    """The settings of one launch. Every field means the same as the flag of ``rdzv-run`` that it is named after."""

    min_nodes: int
    max_nodes: int
    """The maximum of --nnodes; ``min_nodes`` is its minimum."""
    nproc_per_node: int
    logs_specs: Any = None
    """A ``DefaultLogsSpecs``, ours or torch's, or an object of a class derived from torch's ``LogsSpecs``.

    None: a new one of ours.
    """
    run_id: str = ""
    """The job's name, as with --rdzv-id. Empty: one node makes one up; several have to know the same, if any."""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = ""
    """The backend; empty: the one that ``rdzv-run`` uses without --rdzv-backend. torch's default is ``etcd``."""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    """The keys of --rdzv-conf; ``rank`` among them is --node-rank."""
    rdzv_timeout: int = -1
    """The same as ``timeout`` in ``rdzv_configs``, in seconds; -1: not given."""
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    """How workers that run a function are started: ``spawn``, ``fork`` or ``forkserver``, as in ``multiprocessing``."""
    log_line_prefix_template: str | None = None
    """The prefix of each line of ``tee``, with ``${role_name}``, ``${rank}`` and ``${local_rank}``."""
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    """Accepted but not used: torch's public build has nowhere to send metrics, either."""
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    """The NUMA binding of the workers, as torch's ``NumaOptions``."""
    signals_to_handle: str = SIGNALS
    duplicate_stdout_filters: Sequence[str] | None = None
    duplicate_stderr_filters: Sequence[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    """How long stopped workers may take to end, in seconds; None: ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT``, else 30."""

    def __post_init__(self) -> None:
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        seconds = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
        if self.shutdown_timeout is None and seconds.isdecimal():  # whatever else it is, the launch names the variable
            self.shutdown_timeout = int(seconds)


_TORCHS_TIMEOUT = 900
"""What torch's class puts in ``rdzv_configs`` for every backend if nobody has asked for a time-out."""


def as_ours(config: Any) -> LaunchConfig:
    """``config`` itself, or what torch's ``LaunchConfig`` says. Raises ``UsageError`` for anything else.

    It also does so for a field of a newer torch that has been set.
    """
    if isinstance(config, LaunchConfig):
        return config
    if not dataclasses.is_dataclass(config) or isinstance(config, type) or not hasattr(config, "nproc_per_node"):
        raise UsageError(
            f"elastic_launch was given {config!r} for its configuration",
            remedy="Give it rdzv_launcher.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2), or torch's.",
        )
    ours = {each.name for each in dataclasses.fields(LaunchConfig)}
    values = {}
    for each in dataclasses.fields(config):
        value = getattr(config, each.name)
        if each.name in ours:
            values[each.name] = value
        elif value != each.default:
            raise UsageError(
                f"LaunchConfig.{each.name}={value!r}: this rdzv-plugins is too old to have it",
                remedy="Leave it out, or look for a newer release of rdzv-plugins.",
            )
    values["rdzv_configs"] = dict(values.get("rdzv_configs") or {})
    if values["rdzv_configs"].get("timeout") == _TORCHS_TIMEOUT:
        del values["rdzv_configs"]["timeout"]
    return LaunchConfig(**values)
