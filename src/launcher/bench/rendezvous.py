"""``rdzv bench rendezvous``: how long N nodes take to join, and again after a loss; ours beside torch's c10d.

Each run has a process of its own, which holds all nodes as threads; the targets take turns.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.bench.etcd_server import EtcdServer, what_is_missing
from launcher.bench.measure import manifest, peak_memory
from launcher.bench.rendezvous_report import as_data, as_text, caption
from launcher.bench.store_names import hosts_file_only
from launcher.bench.store_targets import Server, Target
from rdzv_plugins.errors import MissingDependency, RdzvError, UsageError
from rdzv_plugins.kvstore.limits import raise_file_limit
from rdzv_plugins.kvstore.server import native_part

TARGETS = ("parallel", "etcd", "torch")
SERVERS = ("agent", "process")
_FILES_PER_NODE = 4
_OTHER_FILES = 100
_SLOW_S = 20.0
"""A join that takes longer is not repeated."""
_START_LIMIT_S = 120.0


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    nodes: tuple[int, ...]
    targets: tuple[str, ...]
    """Empty: all that are installed."""
    server: str
    """Parallel's is part of the first node's process (agent), or has a process of its own."""
    etcd_data: str
    """The directory in which etcd's data is for as long as it runs."""
    repeats: int
    ttl: float
    limit_s: float


@dataclass
class Result:
    """The runs with one number of nodes, by target: what ``rendezvous_child.Sample`` holds, as data."""

    nodes: int
    samples: dict[str, list[dict[str, Any]]]
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a target was not measured."""


def run(settings: Settings, *, as_json: bool) -> int:
    """Measure and print; returns the exit code. Raises ``UsageError``, ``MissingDependency`` and ``RdzvError``."""
    native_part()
    _require_files(max(settings.nodes))
    given_up: dict[str, str] = {}
    missing = what_is_missing() if "etcd" in (settings.targets or TARGETS) else None
    if missing is not None:
        if settings.targets:
            raise MissingDependency(f"--targets=etcd: {missing[0]}", remedy=missing[1])
        given_up["etcd"] = missing[0]
    settings = replace(settings, targets=settings.targets or TARGETS)
    about = manifest()
    if not as_json:
        print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n", flush=True)
    measured: list[dict[str, Any]] = []
    with ExitStack() as kept:
        apart = None
        if "torch" in settings.targets:
            apart = hosts_file_only(Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="rdzv-bench-"))))
        for nodes in sorted(settings.nodes):
            print(f"measuring: {nodes} nodes ...", file=sys.stderr, flush=True)
            measured.append(as_data(_measure(nodes, settings, apart or [], given_up)))
            if not as_json:  # at once: the whole takes minutes
                print(as_text(measured[-1]), flush=True)
    if as_json:
        names = "hosts file only" if apart is not None else "as the system has it"
        print(
            json.dumps(
                {"manifest": about, "settings": asdict(settings), "reverse_dns": names, "cases": measured}, indent=2
            )
        )
    else:
        print(caption(settings, names_from_hosts=apart is not None), flush=True)
    return 0


def _require_files(nodes: int) -> None:
    """Both ends of each node's two connections are in one process. Raises ``UsageError``."""
    raise_file_limit()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = nodes * _FILES_PER_NODE + _OTHER_FILES
    if allowed < needed:
        raise UsageError(
            f"{nodes} nodes in one process need {needed} open files; it may have {allowed}",
            remedy="Raise the hard limit (ulimit -Hn), or ask for fewer by --nodes.",
        )


def _measure(nodes: int, settings: Settings, apart: list[str], given_up: dict[str, str]) -> Result:
    """One number of nodes: the targets in turns. A target that did not finish is not asked for more nodes."""
    result = Result(nodes, {target: [] for target in settings.targets})
    result.skipped = dict(given_up)
    for repeat in range(settings.repeats):
        order = settings.targets if repeat % 2 == 0 else settings.targets[::-1]
        for target in order:
            samples = result.samples[target]
            if target in given_up or (samples and (samples[-1]["join"] or {}).get("seconds", 0) > _SLOW_S):
                continue
            samples.append(_run(target, nodes, settings, apart if target == "torch" else [], idle=repeat == 0))
            if samples[-1]["unfinished"]:
                given_up[target] = f"{samples[-1]['unfinished']}, with {nodes} nodes"
    return result


def _run(target: str, nodes: int, settings: Settings, prefix: list[str], *, idle: bool) -> dict[str, Any]:
    """One run in a fresh process; what it says. Raises ``RdzvError`` with its last words."""
    with ExitStack() as running:
        server: Server | EtcdServer | None = None
        if target == "etcd":
            server = running.enter_context(EtcdServer(settings.etcd_data))
        elif target == "parallel" and settings.server == "process":
            server = running.enter_context(Server(Target("ours"), []))
        if server is not None:
            server.wait_ready()
        task = {
            "target": target,
            "nodes": nodes,
            "port": server.port if server is not None else 0,
            "pid": server.pid if server is not None else 0,
            "ttl": settings.ttl,
            "limit_s": settings.limit_s,
            "idle": idle,
        }
        command = [*prefix, sys.executable, "-m", "launcher.bench.rendezvous_child", json.dumps(task)]
        pipe = subprocess.PIPE
        words = running.enter_context(tempfile.TemporaryFile("w+"))  # thousands of nodes may warn: no pipe holds that
        child = running.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=words, text=True))
        running.callback(child.kill)
        assert child.stdout is not None, "started with a pipe"
        # its standard input stays open until it has ended: that is how it knows that this process lives
        limit_s = _START_LIMIT_S + 3 * settings.limit_s + 5 * settings.ttl
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise RdzvError(f"{target}, {nodes} nodes: no end after {limit_s:g} s") from None
        said, _ = child.communicate()
        if child.returncode:
            words.seek(0)
            last = words.read().strip().splitlines()[-12:]
            raise RdzvError("\n  | ".join([f"{target}, {nodes} nodes: exit code {child.returncode}", *last]))
        sample: dict[str, Any] = json.loads(said)
        sample["server_peak_mib"] = peak_memory(server.pid) if server is not None else None
        return sample
