"""The arguments of ``rdzv bench all``, and which benchmarks that is."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rdzv_plugins.errors import UsageError

_OUT = "rdzv-bench"
_ETCD = "etcd"
_WITHOUT_NAMES = "--workloads=storm,barrier,mesh,one_key,multi_get,hold"
_MANY = ("--simulate", "--nodes=8,64,256,1024")


class Step(NamedTuple):
    """One benchmark."""

    bench: str
    arguments: tuple[str, ...] = ()


FULL = (
    Step("rendezvous", (f"--backends=static,parallel,tiered,{_ETCD}", *_MANY, "--ttl=5", "--limit=20", "--repeats=2")),
    Step("launch", (f"--backends=static,parallel,{_ETCD}", "--repeats=3", "--collectives=2")),
    Step("faults", (f"--backends=parallel,{_ETCD}", "--repeats=2", "--limit=25")),
    Step("store", ("--connections=1000", "--storm=4000", "--hold=8000", "--repeats=3", _WITHOUT_NAMES)),
    Step("tiered", ("--nodes=4,16", "--many=none")),
    Step("transport", ("--repeats=3",)),
)
"""Sizes that two cores get through in about 17 minutes together."""
QUICK = tuple(Step(bench, ("--quick",)) for bench in dict.fromkeys(step.bench for step in FULL))


def configure(what: Any) -> None:
    """Add the sub-command's parser."""
    names = ",".join(step.bench for step in QUICK)
    parser = what.add_parser("all", help="every benchmark one after the other, and a report of them")
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
    """Run it; returns the exit code. Raises ``UsageError``, ``MissingDependency``, ``RdzvError`` if one has failed."""
    from launcher.bench.all import run as run_all

    steps = QUICK if args.quick else FULL if _etcd_is_there() else tuple(map(without_etcd, FULL))
    return run_all(steps if args.only is None else _some(steps, args.only.split(",")), Path(args.out))


def without_etcd(step: Step) -> Step:
    """The others can be compared where there is no etcd."""
    return Step(step.bench, tuple(argument.replace(f",{_ETCD}", "") for argument in step.arguments))


def _etcd_is_there() -> bool:
    return shutil.which("etcd") is not None and all(importlib.util.find_spec(name) for name in ("etcd3", "grpc"))


def _some(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    for name in names:
        if name not in (step.bench for step in steps):
            known = ", ".join(dict.fromkeys(step.bench for step in steps))
            raise UsageError(f"--only: '{name}' is none of {known}")
    return [step for step in steps if step.bench in names]
