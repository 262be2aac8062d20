"""``rdzv bench``: its sub-commands and their flags. The code of a benchmark is imported when it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from rdzv_plugins.errors import RdzvError, UsageError

_DESCRIPTION = """\
Each benchmark compares backends with torch's own in the same run, taking turns. It prints medians with their spread,
and ratios where these exceed the spread. Progress goes to stderr. --json prints the result as JSON lines; --out=DIR
also writes them there, with charts."""
_EXAMPLES = """\
examples:
  rdzv bench rendezvous --quick                 check that it works
  rdzv bench rendezvous --backends=parallel,etcd --nodes=16,64,256 --out=results
  rdzv bench all --out=results                  everything, about 20 minutes on two cores
  rdzv bench report results                     several results side by side on one page

`rdzv bench WHAT --help` lists the flags of each."""
_BENCHMARKS = {
    "rendezvous": "time to join, and to join again after a node is lost, for any backends and torch's own",
    "launch": "time from the command to the workers' first line and first collective, beside torchrun",
    "faults": "time a job needs to continue after losing a worker, an agent or the store's host",
    "store": "cost of a request to the store server, beside torch's, and what proxies and transports save",
}
_INTERRUPTED = 128 + signal.SIGINT
_REFERENCES = ("torch-c10d", "torch-static")
_FAULTS = ("worker", "agent", "frozen", "host", "place", "place-frozen")
_WORKLOADS = ("storm", "barrier", "mesh", "one_key", "multi_get", "hold", "init", "worker")

_GONE = {
    "tiered": "Use the workload instead: rdzv bench store --workloads=init --job=16x8.",
    "transport": "Use the workload instead: rdzv bench store --workloads=worker.",
}
"""Sub-commands that there were, and what to do instead."""
_OTHER_RUN = "Set it with --rdzv-conf, and compare with a run without it: rdzv bench report."
_CONNECTIONS = "It follows --connections: storm has 4 times as many, hold 8 times."
_GONE_FLAGS = {
    "rendezvous": {
        "--hosts": "All nodes are on loopback.",
        "--server": "Start `rdzv serve`, and give --rdzv-endpoint=BACKEND=HOST:PORT.",
        "--processes": "Use --simulate=P.",
        "--closed": f"Tokens and certificates are options of a backend. {_OTHER_RUN}",
        "--delay": "Use `rdzv bench store --workloads=init --delay=MS`.",
        "--etcd-data": "etcd keeps its data in TMPDIR: set that.",
    },
    "launch": {"--full-node": "The case preload has nodes of 2 and 8 workers."},
    "faults": {"--collective-timeout": "It is 20 s."},
    "store": {
        "--threads": "Use --targets=ours,ours:2.",
        "--closed": f"Use `rdzv bench rendezvous` to see what a token and TLS cost. {_OTHER_RUN}",
        "--many": "One process holds all clients: use --connections=N.",
        "--storm": _CONNECTIONS,
        "--hold": _CONNECTIONS,
        "--rounds": "A client repeats a workload 10 times; raise --repeats.",
        "--gets": "A client of mesh gets the blobs of 8 others, one of init those of all.",
        "--fanout": "See docs/internals/performance.md#what-proxies-save.",
        "--sizes": "The workload worker uses values of 1024 and 8192 bytes.",
        "--worker-rounds": "Raise --repeats.",
    },
}
"""Flags that there were, and what to do instead."""


class _Gone(argparse.Action):
    """A flag that there was; its ``const`` says what to do instead."""

    def __call__(self, parser: argparse.ArgumentParser, args: Any, values: Any, option: str | None = None) -> NoReturn:
        parser.error(f"{option} was removed. {self.const}")


class _Quick(argparse.Action):
    """Sets what no flag before it has set; flags after it win."""

    def __call__(self, parser: argparse.ArgumentParser, args: Any, values: Any, option: str | None = None) -> None:
        args.quick = True
        for name, value in self.const.items():
            if getattr(args, name) == parser.get_default(name):
                setattr(args, name, value)


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    bench = commands.add_parser(
        "bench",
        help="run benchmarks, with torch's own in the same run",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.set_defaults(bench_help=bench.format_help)
    what = bench.add_subparsers(dest="what", metavar="WHAT", title="what to measure")
    for name, add_flags in (("rendezvous", _rendezvous), ("launch", _launch), ("faults", _faults), ("store", _store)):
        parser = what.add_parser(name, help=_BENCHMARKS[name], description=_BENCHMARKS[name])
        if name != "store":
            _backends(parser)
        quick = add_flags(parser)
        parser.add_argument(
            "--quick", action=_Quick, nargs=0, const=quick, default=False, help="few small runs, to check that it "
            "works, not for figures; flags after it win",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print JSON lines (manifest, points, ratios, end)")
        parser.add_argument("--out", metavar="DIR", help="also write JSON lines and charts to this directory")
        for flag, instead in _GONE_FLAGS[name].items():
            parser.add_argument(flag, action=_Gone, const=instead, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    _all(what.add_parser("all", help="run all benchmarks in turn, and write a report"))
    report = what.add_parser("report", help="show several results side by side on one self-contained HTML page")
    report.add_argument("directory", metavar="DIR", help="results written by rdzv bench --out=DIR")
    report.add_argument("--to", metavar="FILE", help="the page (default DIR/report.html)")
    for name in _GONE:  # no word after it is a flag
        what.add_parser(name, add_help=False, prefix_chars="\0").add_argument("words", nargs="*")


def run(args: argparse.Namespace) -> int:
    """Run the requested benchmark; returns the exit code. Raises whatever that raises."""
    if args.what is None:
        print(args.bench_help(), end="", file=sys.stderr)
        return UsageError.exit_code
    if args.what in _GONE:
        raise UsageError(f"rdzv bench {args.what} was removed", remedy=_GONE[args.what])
    del args.bench_help
    try:
        return _run(args)
    except KeyboardInterrupt:
        print(f"rdzv bench {args.what}: interrupted; results so far are kept", file=sys.stderr)
        return _INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    if args.what == "report":
        from rdzv_launcher.bench.page import write_report

        directory = Path(args.directory)
        print(f"wrote {write_report(directory, Path(args.to or directory / 'report.html'))}", flush=True)
        return 0
    if not getattr(args, "rdzv_endpoint", ()):  # whose host may have a name
        from rdzv_launcher.bench.children import names_apart

        names_apart()
    if args.what == "all":
        steps: list[tuple[str, ...]] = [(name, "--quick") for name in _BENCHMARKS] if args.quick else full()
        return run_all([step for step in steps if step[0] in args.only], Path(args.out))
    code: int = importlib.import_module(f"rdzv_launcher.bench.{args.what}").run(args)
    return code


# how values are read


def _number(kind: type[int] | type[float], least: float = 1, most: float = 2**62) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        with suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        limits = f"{least:g} or more" if most == 2**62 else f"{least:g} to {most:g}"
        words = "whole number" if kind is int else "number"
        raise argparse.ArgumentTypeError(f"'{text}': give a {words}, {limits}")

    return read


def _each(one: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A,B: each once."""
    return lambda text: tuple(dict.fromkeys(one(part) for part in text.split(",")))


def _word(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if (known and text not in known) or not text:
            raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(known)}" if known else "empty name")
        return text

    return read


def _references(text: str) -> tuple[str, ...]:
    return () if text == "none" else _each(_word(*_REFERENCES))(text)


def _job(text: str) -> tuple[int, int]:
    nodes, _, each = text.partition("x")
    return _number(int, 1, 4096)(nodes), _number(int, 1, 4096)(each)


def _of_backend(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not (name and value):
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form BACKEND=VALUE")
    return name, value


def _flag(parser: argparse.ArgumentParser, name: str, default: Any, read: Any, metavar: str, text: str) -> None:
    """Add one flag. The help ends with the default, unless that is nothing or said otherwise."""
    if default not in (None, "", ()) and "default" not in text:
        words = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        text = f"{text} (default {words})"
    parser.add_argument(name, default=default, type=read, metavar=metavar, help=text)


def _backends(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--backends", None, _each(_word()), "A,B", "installed backends to compare with torch's own "
        "(default: those of rdzv-plugins that can run here)")  # fmt: skip
    parser.add_argument("--rdzv-endpoint", "--rdzv_endpoint", action="append", default=[], type=_of_backend,
        metavar="BACKEND=WHERE", help="where a backend's service already runs (default: its harness starts one); "
        "may be repeated")  # fmt: skip
    parser.add_argument("--rdzv-conf", "--rdzv_conf", action="append", default=[], type=_of_backend,
        metavar="BACKEND=K=V,...", help="options of a backend; may be repeated")  # fmt: skip
    _flag(parser, "--references", _REFERENCES, _references, "A,B", "torch's rendezvous to compare with, or none")


# the flags of each benchmark; each function returns what --quick sets


def _rendezvous(parser: argparse.ArgumentParser) -> Mapping[str, Any]:
    _flag(parser, "--nodes", (4, 16, 64), _each(_number(int, 4)), "N,N", "numbers of nodes, each at least 4, as one of "
        "them is lost")  # fmt: skip
    parser.add_argument("--simulate", nargs="?", const=len(os.sched_getaffinity(0)), default=0, type=_number(int),
        metavar="P", help="run thousands of nodes as threads of P processes (default P: one per core) and a few "
        "processes of one node; without it each node is a process")  # fmt: skip
    _flag(parser, "--ttl", 10.0, _number(float, 2, 3600), "SECONDS", "of a session, if the backend has sessions")
    _flag(parser, "--repeats", 3, _number(int), "N", "runs of each target, after a warm-up")
    _flag(parser, "--limit", 60.0, _number(float, 1, 3600), "SECONDS", "time limit of a round; a target that exceeds "
        "it is not tried with more nodes")  # fmt: skip
    return {"nodes": (4, 16), "repeats": 1}


def _launch(parser: argparse.ArgumentParser) -> Mapping[str, Any]:
    cases = ("one-node", "nodes", "preload")
    _flag(parser, "--cases", cases, _each(_word(*cases)), "A,B", "one-node (launchers without rendezvous flags), "
        "nodes (every backend), preload (one node of 2 and one of 8 workers that import torch, with --preload=torch "
        "and without)")  # fmt: skip
    _flag(parser, "--nodes", 2, _number(int, 2), "N", "agents of the job, all on this machine")
    _flag(parser, "--workers", 1, _number(int), "N", "workers per node")
    _flag(parser, "--repeats", 5, _number(int), "N", "runs of each target, after a warm-up")
    _flag(parser, "--collectives", 3, _number(int, 0), "N", "further runs, with workers that import torch, up to their "
        "first collective; 0: none")  # fmt: skip
    _flag(parser, "--limit", 120.0, _number(float, 1, 3600), "SECONDS", "time limit of a start, and of an end; "
        "exceeding it is a result too")  # fmt: skip
    return {"repeats": 1, "collectives": 1}


def _faults(parser: argparse.ArgumentParser) -> Mapping[str, Any]:
    _flag(parser, "--faults", _FAULTS, _each(_word(*_FAULTS, "host-again")), "A,B", "some of these, or host-again")
    _flag(parser, "--nodes", 3, _number(int, 3), "N", "agents of the job, all on this machine, with one worker each: "
        "one serves, one is lost, one is neither")  # fmt: skip
    _flag(parser, "--preload", "", str, "MODULE", "also measure each backend with rdzv-run --preload=MODULE")
    _flag(parser, "--repeats", 3, _number(int), "N", "runs of each target")
    _flag(parser, "--ttl", 3, _number(int), "SECONDS", "after which a silent node counts as lost, in backends that "
        "detect it and in torch's c10d")  # fmt: skip
    _flag(parser, "--limit", 60.0, _number(float, 1, 3600), "SECONDS", "time limit after the fault; a job that exceeds "
        "it, or ends, is a result too")  # fmt: skip
    return {"repeats": 1}


def _store(parser: argparse.ArgumentParser) -> Mapping[str, Any]:
    counts = _each(_number(int))
    _flag(parser, "--workloads", _WORKLOADS, _each(_word(*_WORKLOADS)), "A,B", "some of them")
    _flag(parser, "--targets", ("ours", "libuv", "legacy", "echo"), _each(_word()), "A,B", "servers, also ours:THREADS")
    _flag(parser, "--connections", (1000,), counts, "N,N", "clients of barrier, mesh, one_key and multi_get; storm "
        "has 4 times as many, hold 8 times")  # fmt: skip
    _flag(parser, "--job", ((4, 8), (16, 8)), _each(_job), "MxN,MxN", "init: M nodes with N ranks each (default "
        "4x8,16x8)")  # fmt: skip
    _flag(parser, "--delay", 2.0, _number(float, 0, 1000), "MS", "init: added to a round trip between a node and "
        "the root; measured with and without it; 0: only without")  # fmt: skip
    _flag(parser, "--workers", (1, 8), counts, "N,N", "worker: processes at once")
    _flag(parser, "--repeats", 5, _number(int), "N", "runs of each server, after a warm-up")
    _flag(
        parser, "--limit", 60.0, _number(float, 0.001, 3600), "SECONDS", "time limit of a run; beyond is a result too"
    )
    return {"connections": (50,), "repeats": 1, "job": ((2, 4),), "workers": (2,)}


# all of them, and a report


def _all(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(_BENCHMARKS)
    parser.description = (
        f"Run {names}, each in its own process; if one fails, the others still run. Writes results, charts and a page "
        "with all of them (report.html) to one directory."
    )
    _flag(parser, "--out", "rdzv-bench", str, "DIR", "where to write; results already there are part of the report")
    _flag(parser, "--only", tuple(_BENCHMARKS), _each(_word(*_BENCHMARKS)), "A,B", "some of them")
    parser.add_argument("--quick", action="store_true", help="few small runs, to check that it works")


def full() -> list[tuple[str, ...]]:
    """Every benchmark with its arguments, in sizes that two cores finish in about 20 minutes together.

    torch's own rendezvous is measured beside the backends in any case, so those built on it are left out, as are those
    whose service is not there. A job is started, and disturbed, over one of the backends that meet at the native store:
    the others do the same there.
    """
    from rdzv_launcher.bench.backends import shipped, there
    from rdzv_plugins.testing.find import find_harness

    own = [each for each in map(find_harness, filter(there, shipped())) if each.kind != "state"]
    native = [each for each in own if each.native]
    jobs = [each for each in own if each not in native[1:]]
    elastic = [each for each in jobs if each.kind == "coordination"]
    all_of, of_jobs, of_elastic = (
        f"--backends={','.join(each.backend for each in some)}" for some in (own, jobs, elastic)
    )
    return [
        ("rendezvous", all_of, "--simulate", "--nodes=8,64,256,1024", "--ttl=5", "--limit=20", "--repeats=2"),
        ("launch", of_jobs, "--repeats=3", "--collectives=2"),
        ("faults", of_elastic, "--repeats=2", "--limit=25", "--preload=torch"),
        ("store", "--connections=1000", "--repeats=3"),
    ]


def run_all(steps: Sequence[tuple[str, ...]], out: Path) -> int:
    """Run the steps and write ``out/report.html``; returns the exit code.

    Raises ``UsageError`` if ``out`` cannot be written to or holds results that cannot be read, before anything runs;
    ``MissingDependency``; and ``RdzvError`` at the end if a benchmark has failed: the others have run, and the report
    contains what there is.
    """
    from rdzv_launcher.bench.children import die_with_me
    from rdzv_launcher.bench.page import require_libraries, write_report
    from rdzv_launcher.bench.results import SUFFIX, read_results, require_writable
    from rdzv_plugins.system.processes import ended_by

    require_libraries()
    require_writable(out)
    if any(out.glob(f"*{SUFFIX}")):
        read_results(out)  # what cannot be part of the report is better reported now than after a quarter of an hour
    failed = []
    for number, step in enumerate(steps, start=1):
        words = ["bench", *step, f"--out={out}"]
        print(f"[{number} of {len(steps)}] {shlex.join(['rdzv', *words])}\n", flush=True)
        began, command = time.monotonic(), [sys.executable, "-m", "rdzv_launcher.tools", *words]
        # what a benchmark has started ends with it, so it need not tidy up
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_me(signal.SIGTERM)) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # it got that too, and tidies up
                process.wait()
                raise
        end = f"it {ended_by(code)}" if code else "done"
        failed += [f"{step[0]} ({end})"] if code else []
        print(f"\n[{number} of {len(steps)}] {step[0]}: {end}, {time.monotonic() - began:.0f} s\n", flush=True)
    if any(file.stat().st_size for file in out.glob(f"*{SUFFIX}")):
        print(f"wrote {write_report(out, out / 'report.html')}", flush=True)
    if failed:
        raise RdzvError(
            f"{len(failed)} of {len(steps)} benchmarks failed: {', '.join(failed)}",
            remedy="Their messages are above; run one again alone, with the same arguments.",
        )
    return 0
