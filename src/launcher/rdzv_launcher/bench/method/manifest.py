"""What a figure was measured on: without it nobody can tell what the figure means, or measure it again."""

from __future__ import annotations

import datetime
import os
import platform
import re
import resource
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rdzv_plugins.errors import UsageError

_DISTRIBUTIONS = ("rdzv-plugins", "torch", "torch_npu", "etcd3", "grpcio", "protobuf", "pluggy")
_NONE: Mapping[str, str] = MappingProxyType({})
_SECRET_NAME = r"\w*(?:password|passwd|secret|token)\w*"
_SECRET = re.compile(rf"({_SECRET_NAME}=)[^,]+", re.IGNORECASE)


def manifest(bench: str, options: Mapping[str, Any], plugins: Mapping[str, str] = _NONE) -> dict[str, Any]:
    """The machine, its limits, the versions, and what was asked for. Does not import torch.

    ``options``: every setting of the benchmark, including defaults, in a form that JSON can hold. ``plugins``: name and
    version of other distributions that are measured.
    """
    return {
        "bench": bench,
        "command": shlex.join(["rdzv", *map(_without_secrets, sys.argv[1:])]),
        "options": _data_without_secrets(dict(options)),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "limits": {
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "processes": resource.getrlimit(resource.RLIMIT_NPROC)[1],
            "somaxconn": _number("/proc/sys/net/core/somaxconn"),
        },
        "python": platform.python_version(),
        "versions": _versions() | dict(plugins),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def as_text(about: Mapping[str, Any]) -> str:
    """A manifest as two lines of text."""
    versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    limits = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about["limits"].items())
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, {about['kernel']}, load {about['load']}\n"
        f"Python {about['python']}, {versions}; {limits}"
    )


def _without_secrets(text: str) -> str:
    """The text without what looks like a password in ``--rdzv-conf``, as results are published."""
    return _SECRET.sub(r"\1***", text)


def _data_without_secrets(data: Any, name: str = "") -> Any:
    """The same for data that JSON can hold."""
    if isinstance(data, Mapping):
        return {key: _data_without_secrets(value, key) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_data_without_secrets(each, name) for each in data]
    if isinstance(data, str):
        return "***" if data and re.fullmatch(_SECRET_NAME, name, re.IGNORECASE) else _without_secrets(data)
    return data


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _number(path: str) -> int:
    try:
        return int(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"rdzv bench reads {path}, which is not there: {error}", remedy="It needs Linux.") from None


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
