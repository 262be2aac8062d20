"""A benchmark as a user runs it, in a process of its own, and plug-ins of strangers as pip would leave them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kits import ROOT
from kits.distribution import leave
from rdzv_launcher.bench.points import Point
from rdzv_launcher.bench.results import Result, read_result
from rdzv_plugins.testing.processes import before_exec, clean_environment, kill, marked

RDZV = str(Path(sys.executable).parent / "rdzv")
_TIMEOUT_S = 200.0
_MARK = "BENCH_TEST_MARK"
"""The variable by which processes are found: none of those that the launcher's processes lose."""

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


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str

    def result(self) -> Result:
        """What ``--json`` has printed."""
        assert self.returncode == 0, self.stderr
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "printed.jsonl")
            file.write_text(self.stdout)
            return read_result(file)


def bench(*arguments: str, sites: tuple[Path, ...] = ()) -> Done:
    """``rdzv bench ARGUMENTS`` to its end; what is installed in ``sites`` is there too. It leaves no process."""
    with started(*arguments, sites=sites) as process:
        out, err = process.communicate(timeout=_TIMEOUT_S)
        left = process.left()
    assert left == {}, err
    return Done(process.returncode, out, err)


class Bench(subprocess.Popen[str]):
    """A benchmark that runs. All that it starts carries its mark."""

    mark = ""

    def left(self) -> dict[int, str]:
        """The processes with its mark that live: pid to command line."""
        return marked(self.mark, variable=_MARK)


@contextmanager
def started(*arguments: str, sites: tuple[Path, ...] = ()) -> Iterator[Bench]:
    """``rdzv bench ARGUMENTS``, in a session of its own. What it has started ends with the block at the latest."""
    mark = uuid.uuid4().hex
    ours = {"PYTHONPATH": os.pathsep.join(map(str, sites)), _MARK: mark}
    pipe = subprocess.PIPE
    with Bench(
        [RDZV, "bench", *arguments],
        env=clean_environment() | ours,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=before_exec(),
    ) as process:
        process.mark = mark
        try:
            yield process
        finally:
            for pid in process.left():
                kill(pid)


def install(directory: Path, name: str, harnesses: Mapping[str, str], code: Path) -> tuple[Path, ...]:
    """For ``sites``: a distribution rdzv-NAME 7.5, as pip would leave it, whose modules are in ``code``.

    ``harnesses``: backend -> MODULE:CLASS.
    """
    module = next(iter(harnesses.values())).partition(":")[0].partition(".")[0]
    groups = [f"[rdzv_plugins]\n{name} = {module}\n\n[rdzv_plugins.harnesses]"]
    groups += [f"{backend} = {harness}" for backend, harness in harnesses.items()]
    return leave(directory / "site", f"rdzv-{name}", "\n".join(groups) + "\n", "7.5"), code


def odd_backends(directory: Path) -> tuple[Path, ...]:
    """For ``sites``: the backends ``odd``, ``prompt`` and ``slow`` of odd_backends.py."""
    alike = dict.fromkeys(("prompt", "slow"), "odd_backends:DirectoryHarness")
    return install(directory, "odd", {"odd": "odd_backends:OddHarness"} | alike, Path(__file__).parent)


def http_backend(directory: Path) -> tuple[Path, ...]:
    """For ``sites``: the example's backend, whose agents need no torch."""
    code = ROOT / "examples" / "rdzv-http" / "src"
    return install(directory, "http", {"http": "rdzv_http.conformance:HttpHarness"}, code)


def stand_ins(directory: Path) -> tuple[str, Path]:
    """A launcher, which ends when its worker does, and a worker that says what one of three does, and no more.

    Without torch: for what the benchmarks make of agents that end or say nothing.
    """
    launcher, worker = directory / "launcher", directory / "worker.py"
    launcher.write_text(f"#!{sys.executable}\n{_LAUNCHER}")
    launcher.chmod(0o755)
    worker.write_text(_WORKER)
    return str(launcher), worker


def find(result: Result, case: str, target: str, figure: str) -> Point:
    """The one point there is."""
    (found,) = (p for p in result.points if (p.case, p.target, p.figure) == (case, target, figure))
    return found


def point(target: str, *samples: float, figure: str = "join", case: str = "64 nodes", **more: Any) -> Point:
    """That nobody has measured, of a target that is compared with others."""
    return Point("test", case, target, figure, "join", "s", samples, **more)


def theirs(*samples: float, **more: Any) -> Point:
    """Of the reference."""
    return point("torch", *samples, reference=True, **more)
