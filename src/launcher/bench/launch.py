"""``rdzv bench launch``: how long until the first worker speaks, and what the agent costs, beside torchrun.

The worker does not import torch, so what shows is the launcher's own time. It prints one line and
then waits for the end of its standard input, which it has from the agent and the agent from here: so
the agent is alive while it is looked at, and nothing is left behind if this process is killed.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from launcher.bench.measure import cpu_seconds, manifest, peak_memory, summarise
from rdzv_plugins.errors import RdzvError, UsageError

LAUNCHERS = ("rdzv-run", "torchrun")
_MARK = b"worker started\n"
_WORKER = f"""\
import os, sys
os.write(1, {_MARK!r})  # print() under python -u writes the line's end apart, and two workers share this pipe
sys.stdin.buffer.read()
"""
_LIMIT_S = 120.0
_SAMPLE_EVERY_S = 0.002
_CAPTION = """\
Medians over {repeats} runs of each launcher (min..max), taken in turns; ratio: rdzv-run / torchrun.
  first line   from the start of the agents to the first line of a worker, on the last node to have one
  agent CPU    of the agents alone up to then, user and system, all nodes added up
  agent peak   largest resident memory of the agent itself over its whole life (the larger of two)
  ending       from letting the workers end to the end of the last agent
  total CPU    of the agents over their whole life, and of the workers: wait4 counts children that were waited for
Agents of two nodes are two processes on 127.0.0.1: loopback names resolve from the hosts file, so slow DNS,
which costs torchrun seconds on real networks, does not show here. torchrun also loads rdzv-plugins' entry
point, because it is installed beside it."""
_ROWS = {
    "first_line_s": ("first line", "s"),
    "agent_cpu_s": ("agent CPU", "s"),
    "agent_peak_mib": ("agent peak", "MiB"),
    "ending_s": ("ending", "s"),
    "total_cpu_s": ("total CPU", "s"),
}


@dataclass(frozen=True)
class Case:
    """One way to launch, the same for both launchers."""

    name: str
    nodes: int
    workers_per_node: int
    backend: str
    """"" where the launcher's own default is measured."""

    def command(self, launcher: str, node: int, port: int, worker: Path) -> list[str]:
        """The command line of one node's agent."""
        command = [str(Path(sysconfig.get_path("scripts")) / launcher), f"--nproc-per-node={self.workers_per_node}"]
        if self.backend:
            command += [f"--nnodes={self.nodes}", f"--rdzv-backend={self.backend}", "--rdzv-id=bench"]
            command += [f"--rdzv-endpoint=127.0.0.1:{port}"]
        if self.backend == "static":
            command.append(f"--node-rank={node}")
        return [*command, str(worker)]


CASES = (
    Case("one node, 2 workers", 1, 2, ""),
    Case("two nodes, 1 worker each, static", 2, 1, "static"),
    Case("two nodes, 1 worker each, c10d", 2, 1, "c10d"),
)


@dataclass
class Sample:
    """The figures of one launch; see the caption."""

    first_line_s: float = 0.0
    agent_cpu_s: float = 0.0
    agent_peak_mib: float = 0.0
    ending_s: float = 0.0
    total_cpu_s: float = 0.0


def run(*, repeats: int, as_json: bool) -> int:
    """Measure every case and print the figures; returns the exit code. Raises ``RdzvError`` if a launch fails."""
    if repeats < 1:
        raise UsageError(f"--repeats={repeats}: at least one run is needed")
    for launcher in LAUNCHERS:
        if not (Path(sysconfig.get_path("scripts")) / launcher).exists():
            raise RdzvError(f"there is no {launcher} beside {sys.executable}", remedy="Install torch and rdzv-plugins.")
    about = manifest()
    results = []
    with tempfile.TemporaryDirectory(prefix="rdzv-bench-") as directory:
        worker = Path(directory) / "worker.py"
        worker.write_text(_WORKER)
        for case in CASES:
            print(f"measuring: {case.name} ...", file=sys.stderr, flush=True)
            results.append(_measure(case, repeats, worker))
    if as_json:
        print(json.dumps({"manifest": about, "repeats": repeats, "cases": results}, indent=2))
    else:
        print(_as_text(about, repeats, results))
    return 0


def _measure(case: Case, repeats: int, worker: Path) -> dict[str, Any]:
    """Both launchers in turns, after one run of each that does not count."""
    samples: dict[str, list[Sample]] = {launcher: [] for launcher in LAUNCHERS}
    for turn in range(-1, repeats):
        for launcher in LAUNCHERS if turn % 2 == 0 else reversed(LAUNCHERS):
            sample = _launch(case, launcher, worker)
            if turn >= 0:
                samples[launcher].append(sample)
    figures = {}
    for row in _ROWS:
        figure: dict[str, Any] = {
            launcher: summarise([asdict(sample)[row] for sample in samples[launcher]]) for launcher in LAUNCHERS
        }
        ours, theirs = (figure[launcher]["median"] for launcher in LAUNCHERS)
        figures[row] = figure | {"ratio": round(ours / theirs, 3) if theirs else None}
    return asdict(case) | {"figures": figures}


def _launch(case: Case, launcher: str, worker: Path) -> Sample:
    """One launch from start to end. Raises ``RdzvError`` with the agents' last words if it fails."""
    sample = Sample()
    with tempfile.TemporaryFile() as stderr:
        port = _free_port()
        agents: list[subprocess.Popen[bytes]] = []
        start = time.perf_counter()
        try:
            for node in range(case.nodes):
                command = case.command(launcher, node, port, worker)
                agents.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr))
            _wait_workers(case, agents, start, sample)
            _wait_end(agents, sample)
            if any(agent.returncode for agent in agents):
                raise RdzvError(f"exit codes {[agent.returncode for agent in agents]}")
        except RdzvError as error:
            stderr.seek(0)
            words = stderr.read().decode(errors="replace").strip().splitlines()[-12:]
            raise RdzvError("\n  | ".join([f"{launcher}, {case.name}: {error}", *words])) from None
        finally:
            _stop(agents)
    return sample


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_workers(case: Case, agents: list[subprocess.Popen[bytes]], start: float, sample: Sample) -> None:
    """Wait until every worker has spoken, and read what is asked for when the last node's first one has."""
    said = dict.fromkeys(range(len(agents)), b"")
    with selectors.DefaultSelector() as selector:
        for node, agent in enumerate(agents):
            selector.register(_open(agent.stdout), selectors.EVENT_READ, node)
        while min(text.count(_MARK) for text in said.values()) < case.workers_per_node:
            ready = selector.select(max(0.0, start + _LIMIT_S - time.perf_counter()))
            now = time.perf_counter()
            if not ready:
                raise RdzvError(f"the workers did not start within {_LIMIT_S:g} s")
            for key, _ in ready:
                text = os.read(key.fd, 4096)
                if not text:
                    raise RdzvError("an agent ended before its workers had started")
                said[key.data] += text
            if not sample.first_line_s and all(_MARK in text for text in said.values()):
                sample.first_line_s = now - start
                sample.agent_cpu_s = sum(cpu_seconds(agent.pid) for agent in agents)


def _wait_end(agents: list[subprocess.Popen[bytes]], sample: Sample) -> None:
    """Let the workers end, and watch the agents' memory until they have ended too."""
    peaks = dict.fromkeys((agent.pid for agent in agents), 0.0)
    start = time.perf_counter()
    alive = list(agents)
    while alive:
        for agent in list(alive):
            peaks[agent.pid] = peak_memory(agent.pid) or peaks[agent.pid]
            if agent.stdin and not agent.stdin.closed:
                agent.stdin.close()
            pid, status, usage = os.wait4(agent.pid, os.WNOHANG)
            if pid:
                agent.returncode = os.waitstatus_to_exitcode(status)
                sample.total_cpu_s += usage.ru_utime + usage.ru_stime
                alive.remove(agent)
        if alive and time.perf_counter() > start + _LIMIT_S:
            raise RdzvError(f"the agents did not end within {_LIMIT_S:g} s after their workers")
        time.sleep(_SAMPLE_EVERY_S if alive else 0)
    sample.ending_s = time.perf_counter() - start
    sample.agent_peak_mib = max(peaks.values())


def _stop(agents: list[subprocess.Popen[bytes]]) -> None:
    """End what is left after an error, and close the pipes: workers end with their standard input."""
    for agent in agents:
        _open(agent.stdin).close()
        if agent.poll() is None:
            agent.terminate()
    for agent in agents:
        try:
            agent.wait(10)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
        _open(agent.stdout).close()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "started with a pipe"
    return stream


def _as_text(about: dict[str, object], repeats: int, results: list[dict[str, Any]]) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in about.items())]
    if sys.dont_write_bytecode:
        lines.append(
            "PYTHONDONTWRITEBYTECODE is set: Python modules that pip did not compile are compiled at every start."
        )
    lines.append("")
    for result in results:
        lines.append(f"{result['name']:34}" + "".join(f"{launcher:>24}" for launcher in LAUNCHERS) + f"{'ratio':>8}")
        for row, (title, unit) in _ROWS.items():
            figure = result["figures"][row]
            digits = 1 if unit == "MiB" else 2
            cells = [
                "{median:.{d}f} ({min:.{d}f}..{max:.{d}f})".format(d=digits, **figure[launcher])
                for launcher in LAUNCHERS
            ]
            ratio = "-" if figure["ratio"] is None else f"{figure['ratio']:.3f}"
            lines.append(f"  {title:26}{unit:>6}" + "".join(f"{cell:>24}" for cell in cells) + f"{ratio:>8}")
        lines.append("")
    return "\n".join([*lines, _CAPTION.format(repeats=repeats)])
