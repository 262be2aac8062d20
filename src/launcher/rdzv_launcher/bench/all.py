"""``rdzv bench all``: one benchmark after another, each in its own process, and a report of what they wrote."""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rdzv_launcher.bench.backends import shipped
from rdzv_launcher.bench.charts.files import require_matplotlib
from rdzv_launcher.bench.method.results import SUFFIX, read_results
from rdzv_launcher.bench.processes.child import with_parent
from rdzv_launcher.bench.report.page import write_report
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.testing.find import find_harness
from rdzv_plugins.testing.harness import Harness

_OUT = "rdzv-bench"
_WITHOUT_NAMES = "--workloads=storm,barrier,mesh,one_key,multi_get,hold,many"
_MANY = ("--simulate", "--nodes=8,64,256,1024")


class Step(NamedTuple):
    """One benchmark, and the arguments with which it runs."""

    bench: str
    arguments: tuple[str, ...] = ()


NAMES = ("rendezvous", "launch", "faults", "store", "tiered", "transport")
QUICK = [Step(bench, ("--quick",)) for bench in NAMES]


def full() -> list[Step]:
    """Every benchmark, in sizes that two cores finish in about 20 minutes together, with the backends that are there.

    torch's own rendezvous is measured beside them in any case, so backends built on it are left out. A job is started,
    and disturbed, over one of the backends that meet at the native store: the others do the same there.
    """
    own = [each for each in map(find_harness, shipped()) if each.kind != "state" and _is_there(each)]
    native = [each for each in own if each.native]
    jobs = [each for each in own if each not in native[1:]]
    elastic = [each for each in jobs if each.kind == "coordination"]
    return [
        Step("rendezvous", (_named(own), *_MANY, "--ttl=5", "--limit=20", "--repeats=2")),
        Step("launch", (_named(jobs), "--repeats=3", "--collectives=2")),
        Step("faults", (_named(elastic), "--repeats=2", "--limit=25", "--preload=torch")),
        Step("store", ("--connections=1000", "--storm=4000", "--hold=8000", "--repeats=3", _WITHOUT_NAMES)),
        Step("tiered", ("--nodes=4,16", "--many=none")),
        Step("transport", ("--repeats=3",)),
    ]


def _named(harnesses: Sequence[Harness]) -> str:
    return f"--backends={','.join(each.backend for each in harnesses)}"


def _is_there(harness: Harness) -> bool:
    try:
        harness.require()
    except RdzvError:
        return False
    return True


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    names = ",".join(NAMES)
    parser = what.add_parser("all", help="all benchmarks one after the other, and a report of them")
    parser.description = (
        f"{names.replace(',', ', ')}: one after the other, each in a process of its own. If one fails the others still "
        "run. Writes their results, charts, and a page that shows all of it (report.html) into one directory."
    )
    parser.add_argument(
        "--out",
        default=_OUT,
        metavar="DIR",
        help=f"where to; results that are there are in the report (default {_OUT})",
    )
    parser.add_argument("--only", metavar="A,B", help=f"some of {names} (default all)")
    parser.add_argument(
        "--quick", action="store_true", help="few nodes and one run of each: to see that it works, not for figures"
    )


def run(args: argparse.Namespace) -> int:
    """Run all; returns the exit code. Raises ``UsageError``, ``MissingDependency``, ``RdzvError`` if one has failed."""
    steps = QUICK if args.quick else full()
    return run_steps(steps if args.only is None else _some(steps, args.only.split(",")), Path(args.out))


def _some(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--only: '{name}' is none of {', '.join(NAMES)}")
    return [step for step in steps if step.bench in names]


def run_steps(steps: Sequence[Step], out: Path) -> int:
    """Run the steps and write ``out/report.html``; returns the exit code.

    Raises ``UsageError`` if ``out`` cannot be written to or holds results that cannot be read, before anything runs;
    ``MissingDependency``; and ``RdzvError`` at the end if a benchmark has failed: the others have run, and the report
    contains what there is.
    """
    require_matplotlib()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: cannot write to {out}: {error.strerror}") from None
    if any(out.glob(f"*{SUFFIX}")):
        read_results(out)  # what cannot be part of the report is better reported now than after a quarter of an hour
    failed = []
    for number, step in enumerate(steps, start=1):
        words = ["bench", step.bench, *step.arguments, f"--out={out}"]
        print(f"[{number} of {len(steps)}] {shlex.join(['rdzv', *words])}\n", flush=True)
        began = time.monotonic()
        code = _run_one(words)
        if code:
            failed.append(f"{step.bench} ({_said(code)})")
        end = f"failed: {_said(code)}" if code else "done"
        print(f"\n[{number} of {len(steps)}] {step.bench}: {end}, {time.monotonic() - began:.0f} s\n", flush=True)
    if any(file.stat().st_size for file in out.glob(f"*{SUFFIX}")):
        print(f"wrote {write_report(out, out / 'report.html')}", flush=True)
    if failed:
        raise RdzvError(
            f"{len(failed)} of {len(steps)} benchmarks failed: {', '.join(failed)}",
            remedy="What each of them has said stands above; run one again alone, with the same arguments.",
        )
    return 0


def _run_one(words: Sequence[str]) -> int:
    command = [sys.executable, "-m", "rdzv_launcher.tools", *words]
    # what a benchmark has started ends with it, so it need not tidy up
    end = with_parent(signal.SIGTERM)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # it got that too, and tidies up
            process.wait()
            raise


def _said(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
