"""``rdzv stacks``: where the workers of a running job are, or those of this machine."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from msgspec import to_builtins

from rdzv_launcher.run.stacks.gathering import NATIVE_S
from rdzv_launcher.run.stacks.reports import Silent, WorkerReport, grouped, headline, read, report_text
from rdzv_launcher.tools.asking import ask_job
from rdzv_launcher.tools.job import add_job_flags, request_of
from rdzv_launcher.tools.stacks.local import idle_agents, local_jobs, read_job
from rdzv_plugins.errors import UsageError
from rdzv_plugins.questions import STACKS

HERE = "`rdzv stacks` without --rdzv-endpoint, on each of its machines, reads the workers there."
_ON_THE_WAY_S = 1.0
"""The part of the time for an answer that its transport may take."""


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser("stacks", help="show where the workers of a job are in their code, the odd ones first")
    add_job_flags(
        parser,
        endpoint_help="the job's endpoint, one or several: all of its nodes are asked; if unset, show the "
        "workers of this machine, of any backend",
        endpoint_required=False,
    )
    parser.add_argument(
        "--children", action="store_true", help="also processes that the workers have started (data loaders)"
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="wait for native frames; otherwise only those that can be read within 3 seconds",
    )
    parser.add_argument("--threads", action="store_true", help="all threads of the workers, not only the main ones")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--timeout",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long to wait for the nodes' answers (default 20)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask and print; returns the exit code, which is 1 if a node or a worker is missing. Raises ``RdzvError``."""
    if not 2 <= args.timeout <= 120:
        raise UsageError(f"--timeout={args.timeout:g} is not between 2 and 120 seconds")
    if args.rdzv_endpoint:
        return _remote(args)
    if args.rdzv_backend or args.rdzv_conf:
        raise UsageError(
            "--rdzv-backend and --rdzv-conf say where the nodes of a job meet, with --rdzv-endpoint",
            remedy="Leave them out to read the workers of this machine.",
        )
    return _local(args)


def _remote(args: argparse.Namespace) -> int:
    arguments = {"within": max(1.0, args.timeout - _ON_THE_WAY_S), "children": args.children, "native": args.native}
    answers = ask_job(request_of(args), STACKS, arguments, args.timeout, otherwise=HERE)
    workers, silent = read(answers)
    if args.json:
        nodes = [to_builtins(each) for each in answers]
        print(json.dumps({"endpoint": args.rdzv_endpoint, "nodes": nodes} | _summary(workers, silent), indent=2))
    else:
        print(report_text(workers, silent, threads=args.threads), flush=True)
    return _code(workers, silent)


def _local(args: argparse.Namespace) -> int:
    if not os.path.exists("/proc/self/environ"):
        raise UsageError(
            "the workers of this machine are found in /proc, which only Linux has", remedy="Give --rdzv-endpoint."
        )
    jobs = local_jobs(args.rdzv_id)
    until = time.monotonic() + args.timeout
    native = until if args.native else time.monotonic() + NATIVE_S
    codes, found, texts = [], [], []
    for job in jobs:
        workers, agents = read_job(job, until=until, native=native, children=args.children)
        codes.append(_code(workers, agents))
        found.append({"run": job.run_id} | _summary(workers, agents))
        name = f"run {job.run_id!r} on this machine: " if len(jobs) > 1 or job.run_id != "none" else "on this machine: "
        texts.append(name + report_text(workers, agents, threads=args.threads))
    idle = idle_agents(jobs) if not args.rdzv_id else []
    if idle:
        texts.append(f"agents without workers now: pid {', '.join(map(str, idle))}; `rdzv status` says who is missing")
    if not jobs:
        of = f" of run {args.rdzv_id!r}" if args.rdzv_id else ""
        others = "" if os.geteuid() == 0 else "; those of other users cannot be seen"
        texts.insert(0, f"there is no worker{of} on this machine{others}")
    print(json.dumps({"runs": found, "idle_agents": idle}, indent=2) if args.json else "\n\n".join(texts), flush=True)
    return max(codes, default=1)


def _summary(workers: Sequence[WorkerReport], silent: Sequence[Silent]) -> dict[str, Any]:
    groups = grouped(workers)
    return {
        "headline": headline(groups, silent),
        "groups": [
            {
                "ranks": group.ranks,
                "kind": group.kind,
                "where": group.where,
                "workers": list(map(asdict, group.workers)),
            }
            for group in groups
        ],
        "silent": [asdict(each) for each in silent],
    }


def _code(workers: Sequence[WorkerReport], silent: Sequence[Silent]) -> int:
    complete = (
        bool(workers or silent)
        and all(each.kind == "idle" for each in silent)
        and all(group.kind != "unknown" for group in grouped(workers))
    )
    return 0 if complete else 1
