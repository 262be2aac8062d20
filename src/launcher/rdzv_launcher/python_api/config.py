"""The settings of a launch from Python, as torch's class has them, and the options of ``rdzv-run`` that say the same.

Names and defaults are those of torch's class, which is accepted, too. Where an error names a flag, ``blaming_fields``
names the field.
"""

from __future__ import annotations

import dataclasses
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdzv_launcher.run.options import KEYS, OPTIONS, RunOptions, flag_of, kind_of
from rdzv_launcher.run.workers.spec import Std
from rdzv_plugins.errors import RdzvError, UsageError


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
    signals_to_handle: str = RunOptions.signals_to_handle
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
                f"LaunchConfig.{each.name}={value!r}: this rdzv-plugins is too old to know it",
                remedy="Leave it out, or look for a newer release of rdzv-plugins.",
            )
    values["rdzv_configs"] = dict(values.get("rdzv_configs") or {})
    if values["rdzv_configs"].get("timeout") == _TORCHS_TIMEOUT:
        del values["rdzv_configs"]["timeout"]
    return LaunchConfig(**values)


_METHODS = ("spawn", "fork", "forkserver")
_BARRIER = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"
_RANK = "rank"
"""torch's key in ``rdzv_configs`` for the node's rank."""
_FIELDS = {
    **{flag_of(name): f"rdzv_configs[{name!r}]" for name in KEYS},
    **{flag_of(each.name): each.name for each in dataclasses.fields(LaunchConfig)},
    "--nnodes": "min_nodes, max_nodes",
    "--rdzv-conf": "rdzv_configs",
    "--rdzv-id": "run_id",
    "--node-rank": "rdzv_configs['rank']",
    "--log-dir": "logs_specs.log_dir",
    "--redirects": "logs_specs.redirects",
    "--tee": "logs_specs.tee",
    "--local-ranks-filter": "logs_specs.local_ranks_filter",
    "--numa-binding": "numa_options",
    "--exit-barrier-timeout": _BARRIER,
}
"""What an error says about a flag, it should say about this field."""
_EVEN_EMPTY = ("event_log_handler", "signals_to_handle", "nproc_per_node")
_NO_FLAGS = ("logs_specs", "log_line_prefix_template")
"""Fields that have an option's name, and are handed over otherwise."""


def options_of(config: LaunchConfig) -> RunOptions:
    """The options; variables named PET_... do not count, as in torch. Raises ``UsageError`` that names the field."""
    for name in ("min_nodes", "max_nodes", "max_restarts"):
        _require(config, name, isinstance(getattr(config, name), int), "a whole number")
    _require(config, "monitor_interval", isinstance(config.monitor_interval, int | float), "a number of seconds")
    _require(config, "shutdown_timeout", isinstance(config.shutdown_timeout, int | None), "a number of seconds")
    _require(config, "start_method", config.start_method in _METHODS, f"one of {', '.join(_METHODS)}")
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        texts = all(isinstance(each, str) for each in getattr(config, name) or ())
        _require(config, name, texts, "a list of texts")
    same = (each.name for each in dataclasses.fields(config) if each.name in OPTIONS and each.name not in _NO_FLAGS)
    values = {name: getattr(config, name) for name in same} | {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "rdzv_id": config.run_id or (uuid.uuid4().hex if config.max_nodes == 1 else ""),
        "rdzv_conf": _conf(config),
        "duplicate_stdout_filters": [each for each in config.duplicate_stdout_filters or () if each] or None,
        "duplicate_stderr_filters": [each for each in config.duplicate_stderr_filters or () if each] or None,
        "exit_barrier_timeout": _seconds(os.environ.get(_BARRIER, "")),
        "numa_binding": _numa(config),
        **_logs(config.logs_specs),
    }
    rank = str(config.rdzv_configs.get(_RANK, "-1"))
    if rank != "-1":  # torch's own value for an unknown rank
        _require(config, "rdzv_configs", rank.isdecimal(), "a rank with a number in 'rank'")
        values["node_rank"] = rank
    options = RunOptions()
    for name, value in values.items():
        if value not in (None, False, "") or name in _EVEN_EMPTY:
            kind, choices = kind_of(name)
            if choices is not None and str(value) not in choices:
                raise UsageError(f"{flag_of(name)}={value} is not one of {', '.join(choices)}")
            setattr(options, name, value if kind == list[str] else kind(value))
            options.given[name] = flag_of(name)
    return options


def has_own_logs(specs: Any) -> bool:
    """True for a third-party class of ``LogsSpecs``, whose decisions flags cannot express."""
    return specs is not None and type(specs).__name__ != "DefaultLogsSpecs"


def blaming_fields(error: RdzvError) -> RdzvError:
    """The error, naming fields of ``LaunchConfig`` where it named flags."""

    def named(found: re.Match[str]) -> str:
        return _FIELDS.get(found[0].replace("_", "-"), found[0])

    if error.args and isinstance(error.args[0], str):
        error.args = (re.sub(r"--[a-z]+(?:[-_][a-z]+)*", named, error.args[0]), *error.args[1:])
        error.remedy = re.sub(r"--[a-z]+(?:[-_][a-z]+)*", named, error.remedy)
    return error


def _require(config: LaunchConfig, name: str, fits: bool, what: str) -> None:
    if not fits:
        raise UsageError(f"LaunchConfig.{name}={getattr(config, name)!r} is not {what}")


def _conf(config: LaunchConfig) -> str:
    values = {key: value for key, value in config.rdzv_configs.items() if key != _RANK}
    if config.rdzv_timeout != -1:
        values["timeout"] = config.rdzv_timeout
    for key, value in values.items():
        if "," in f"{key}{value}" or "=" in str(key):
            raise UsageError(f"LaunchConfig.rdzv_configs: {key!r}: {value!r} contains a comma, or its key contains '='")
    return ",".join(f"{key}={value}" for key, value in values.items())


def _seconds(text: str) -> str:
    try:
        return str(float(text)) if text else ""
    except ValueError:
        raise UsageError(f"{_BARRIER}={text} is not a number of seconds") from None


def _numa(config: LaunchConfig) -> str:
    if config.numa_options is None:
        return ""
    if config.start_method == "fork":
        raise UsageError(
            "LaunchConfig.numa_options: forked workers keep the binding of their caller",
            remedy="Use start_method='spawn', or leave out numa_options.",
        )
    mode = getattr(config.numa_options, "affinity_mode", config.numa_options)
    return str(getattr(mode, "value", mode))


def _logs(specs: Any) -> dict[str, Any]:
    """The settings from our class, or torch's class of the same name, which keeps the same under other names."""
    if specs is None or has_own_logs(specs):
        return {}

    def of(name: str) -> Any:
        private = {"log_dir": "_root_log_dir"}.get(name, f"_{name}")
        return getattr(specs, name, None) if hasattr(specs, name) else getattr(specs, private, None)

    return {
        "log_dir": of("log_dir") or "",
        "redirects": _streams(of("redirects")),
        "tee": _streams(of("tee")),
        "local_ranks_filter": ",".join(map(str, sorted(of("local_ranks_filter") or ()))),
    }


def _streams(streams: Any) -> str:
    if isinstance(streams, Mapping):
        return ",".join(f"{rank}:{int(each)}" for rank, each in sorted(streams.items()))
    return str(int(streams or 0))
