"""For the tests of `rdzv bench launch` and `faults`: their results, a stranger's backend, and stand-ins.

The stand-ins are a launcher and a worker without torch, for what the benchmarks make of agents that end or say nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kits import ROOT
from kits.bench.bench_kit import Done, started
from rdzv_launcher.bench.method.results import Result, read_result
from rdzv_launcher.tools import cli as tools

LIMIT_S = 200.0
HTTP_BACKEND = ROOT / "examples" / "rdzv-http" / "src"

_LAUNCHER = """\
import subprocess, sys
script, *args = next(sys.argv[at:] for at, each in enumerate(sys.argv) if each.endswith(".py") and at)
rank = next(each.partition("=")[2] for each in sys.argv if each.startswith("--node-rank="))
code = subprocess.call([sys.executable, "-u", script, *args, rank])
print("stand-in: error: the worker has gone", file=sys.stderr)
sys.exit(3)
"""
_WORKER = """\
import json, os, sys, time
for said in {}, {"round": 1, "rank": int(sys.argv[-1]), "world": 3}:
    print("bench " + json.dumps(said | {"pid": os.getpid(), "at": time.monotonic()}))
time.sleep(600)
"""


def stand_ins(directory: Path) -> tuple[str, Path]:
    """A launcher, which ends when its worker does, and a worker that says what one of three does, and no more."""
    launcher, worker = directory / "launcher", directory / "worker.py"
    launcher.write_text(f"#!{sys.executable}\n{_LAUNCHER}")
    launcher.chmod(0o755)
    worker.write_text(_WORKER)
    return str(launcher), worker


def http_backend(directory: Path) -> tuple[Path, ...]:
    """For ``sites``: the example's backend, as pip would leave it, whose agents need no torch."""
    info = directory / "rdzv_http-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rdzv-http\nVersion: 0.1.0\n")
    groups = "[rdzv_plugins]\nhttp = rdzv_http\n[rdzv_plugins.harnesses]\nhttp = rdzv_http.conformance:HttpHarness\n"
    (info / "entry_points.txt").write_text(groups)
    return directory, HTTP_BACKEND


def without_etcd(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """No program is found any more, etcd's least of all."""
    empty = directory / "no-programs"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))


def leave_nothing_behind(bench: str, missing: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> str:
    """``missing``: what the benchmark finds not to be there before it measures; returns what it says of that."""
    out = directory / "out"
    without_etcd(monkeypatch, directory)
    if missing == "launcher":
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(directory))
    elif missing == "guard":
        monkeypatch.setattr(sys, "executable", "/bin/false")
    assert tools.main(["bench", bench, "--quick", "--backends=etcd", "--references=none", f"--out={out}"]) != 0
    assert [*out.iterdir()] == []
    return {
        "launcher": "there is no rdzv-run",
        "guard": "the process that ends all others with the benchmark did not start",
        "service": "the program etcd is not installed",
    }[missing]


def result_of(printed: str, directory: Path) -> Result:
    """Of the JSON lines that a benchmark has printed in this process."""
    file = directory / "printed.jsonl"
    file.write_text(printed)
    return read_result(file)


def measured(*arguments: str, sites: tuple[Path, ...] = ()) -> Result:
    """What ``rdzv bench ARGUMENTS --json`` says. It leaves no process."""
    with started(*arguments, "--json", sites=sites) as process:
        out, err = process.communicate(timeout=LIMIT_S)
        left = process.left()
    assert left == {}, err
    return Done(process.returncode, out, err).result()
