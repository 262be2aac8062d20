"""From a ``LaunchConfig`` to the equivalent command line, and from flags in errors back to the fields of the config."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from typing import Any

from rdzv_launcher.call.config import LaunchConfig
from rdzv_plugins.errors import RdzvError, UsageError

_METHODS = ("spawn", "fork", "forkserver")
_BARRIER = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"
_RANK = "rank"
"""torch's key in ``rdzv_configs`` for the node's rank."""
_FIELDS = {
    "--nnodes": "min_nodes, max_nodes",
    "--rdzv-conf": "rdzv_configs",
    "--rdzv-id": "run_id",
    "--node-rank": "rdzv_configs['rank']",
    "--log-dir": "logs_specs.log_dir",
    "--redirects": "logs_specs.redirects",
    "--tee": "logs_specs.tee",
    "--local-ranks-filter": "logs_specs.local_ranks_filter",
    "--numa-binding": "numa_options",
    "--preload": "rdzv_configs['preload']",
    "--exit-barrier-timeout": _BARRIER,
    **{
        f"--{name.replace('_', '-')}": name
        for name in (
            "nproc_per_node",
            "rdzv_backend",
            "rdzv_endpoint",
            "local_addr",
            "role",
            "max_restarts",
            "monitor_interval",
            "start_method",
            "signals_to_handle",
            "shutdown_timeout",
            "virtual_local_rank",
            "event_log_handler",
            "logs_specs",
        )
    },
}
"""What an error says about a flag, it should say about this field."""


def flags_of(config: LaunchConfig, environ: Mapping[str, str] | None = None) -> list[str]:
    """The flags; variables named PET_... do not count, as in torch. Raises ``UsageError`` that names the field.

    ``environ`` is used instead of this process's environment.
    """
    for name in ("min_nodes", "max_nodes", "max_restarts"):
        _require(config, name, isinstance(getattr(config, name), int), "a whole number")
    _require(config, "monitor_interval", isinstance(config.monitor_interval, int | float), "a number of seconds")
    _require(config, "start_method", config.start_method in _METHODS, f"one of {', '.join(_METHODS)}")
    flags = {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "nproc-per-node": config.nproc_per_node,
        "rdzv-backend": config.rdzv_backend,
        "role": config.role,
        "max-restarts": config.max_restarts,
        "monitor-interval": config.monitor_interval,
        "start-method": config.start_method,
        "event-log-handler": config.event_log_handler,
        "signals-to-handle": config.signals_to_handle,
        "rdzv-endpoint": config.rdzv_endpoint,
        "rdzv-id": config.run_id or (uuid.uuid4().hex if config.max_nodes == 1 else ""),
        "local-addr": config.local_addr or "",
        "rdzv-conf": _conf(config),
        "duplicate-stdout-filters": _listed(config.duplicate_stdout_filters),
        "duplicate-stderr-filters": _listed(config.duplicate_stderr_filters),
        "exit-barrier-timeout": _seconds((os.environ if environ is None else environ).get(_BARRIER, "")),
        "numa-binding": _numa(config),
        **_logs(config.logs_specs),
    }
    if config.shutdown_timeout is not None:
        _require(config, "shutdown_timeout", isinstance(config.shutdown_timeout, int), "a number of seconds")
        flags["shutdown-timeout"] = config.shutdown_timeout
    if _RANK in config.rdzv_configs:
        rank = str(config.rdzv_configs[_RANK])
        if rank != "-1":  # torch's own value for an unknown rank
            _require(config, "rdzv_configs", rank.isdecimal(), "a rank with a number in 'rank'")
            flags["node-rank"] = rank
    always = ("event-log-handler", "signals-to-handle", "nproc-per-node")
    given = [f"--{flag}={value}" for flag, value in flags.items() if value != "" or flag in always]
    return [*given, *(["--virtual-local-rank"] if config.virtual_local_rank else [])]


def has_own_logs(specs: Any) -> bool:
    """True for a third-party class of ``LogsSpecs``, whose decisions flags cannot express."""
    return specs is not None and type(specs).__name__ != "DefaultLogsSpecs"


def blaming_fields(error: RdzvError) -> RdzvError:
    """The error, naming fields of ``LaunchConfig`` where it named flags."""

    def field(found: re.Match[str]) -> str:
        return _FIELDS.get(found[0].replace("_", "-"), found[0])

    if error.args and isinstance(error.args[0], str):
        error.args = (re.sub(r"--[a-z]+(?:[-_][a-z]+)*", field, error.args[0]), *error.args[1:])
        error.remedy = re.sub(r"--[a-z]+(?:[-_][a-z]+)*", field, error.remedy)
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
            raise UsageError(f"LaunchConfig.rdzv_configs: {key!r}: {value!r} has a comma in it, or its key a '='")
    return ",".join(f"{key}={value}" for key, value in values.items())


def _listed(texts: Any) -> str:
    return ",".join(text.replace(",", ",,") for text in texts or ())


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
            "LaunchConfig.numa_options: what is forked is bound as its caller is",
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
        "log-dir": of("log_dir") or "",
        "redirects": _streams(of("redirects")),
        "tee": _streams(of("tee")),
        "local-ranks-filter": ",".join(map(str, sorted(of("local_ranks_filter") or ()))),
    }


def _streams(streams: Any) -> str:
    if isinstance(streams, Mapping):
        return ",".join(f"{rank}:{int(each)}" for rank, each in sorted(streams.items()))
    return str(int(streams or 0))
