"""What a launch from Python is told. The names and defaults are those of torch's class, one of which is taken, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdzv_launcher.run.command_line.torchrun import SIGNALS
from rdzv_launcher.run.workers.streams import Std
from rdzv_plugins.errors import UsageError


@dataclass(frozen=True)
class DefaultLogsSpecs:
    """Where the workers' output goes, as by --log-dir, --redirects, --tee and --local-ranks-filter."""

    log_dir: str | None = None
    """Empty: a directory for temporary files."""
    redirects: Std | Mapping[int, Std] = Std.NONE
    """The streams that go to files: of all workers, or by local rank."""
    tee: Std | Mapping[int, Std] = Std.NONE
    """Those that go to files and are shown as well."""
    local_ranks_filter: set[int] | None = None
    """Whose output is shown; none: that of all."""


@dataclass
class LaunchConfig:
    """One launch. Every field says the same as the flag of ``rdzv-run`` that it is named after."""

    min_nodes: int
    max_nodes: int
    """--nnodes."""
    nproc_per_node: int
    logs_specs: Any = None
    """A ``DefaultLogsSpecs``, ours or torch's, or an object of a class derived from torch's ``LogsSpecs``."""
    run_id: str = ""
    """--rdzv-id."""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = ""
    """Empty: the one that ``rdzv-run`` takes without --rdzv-backend. torch's default is ``etcd``."""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    """--rdzv-conf; ``rank`` in it is --node-rank."""
    rdzv_timeout: int = -1
    """``timeout`` of ``rdzv_configs``, in seconds; -1: not given."""
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    """How workers that run a function are started: ``spawn``, ``fork`` or ``forkserver``, as in ``multiprocessing``."""
    log_line_prefix_template: str | None = None
    """What stands before each line of ``tee``, with ``${role_name}``, ``${rank}`` and ``${local_rank}``."""
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    """Taken and not used: torch's public build has nowhere to send metrics, either."""
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    """torch's ``NumaOptions``."""
    signals_to_handle: str = SIGNALS
    duplicate_stdout_filters: Sequence[str] | None = None
    duplicate_stderr_filters: Sequence[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    """In seconds; none: ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT``, else 30."""


_TORCHS_TIMEOUT = 900
"""What torch's class puts in ``rdzv_configs`` for every backend if nobody has asked for a time."""


def as_ours(config: Any) -> LaunchConfig:
    """``config`` itself, or what torch's ``LaunchConfig`` says. Raises ``UsageError`` for anything else.

    Also for a field of a newer torch that has been given.
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
