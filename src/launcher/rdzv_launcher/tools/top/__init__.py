"""``rdzv top``: a job, or all jobs of an ``rdzv serve``, as they are now.

What is known is told as lines of text for 80 columns: the same cells for ``--once`` and for the screen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rdzv_launcher.tools.job import add_job_flags, request_of
from rdzv_launcher.tools.status import size, state_text
from rdzv_plugins.elastic.coordinator.placement import in_words
from rdzv_plugins.errors import EndpointUnreachable, MissingDependency, UsageError
from rdzv_plugins.plain_text import printable_data, some

WELL = ("works", "done", "spare")
"""The states of a node that need nobody's attention."""
COLUMNS = ("RANK", "HOST", "STATE", "ROUND", "HEARD", "RST", "WRK", "CPU", "MEMORY")
JOB_COLUMNS = ("JOB", "ROUND", "STATE", "NODES", "WELL", "WHAT")
_WORKERS_OF = 16
"""The number of nodes up to which the text names each worker."""
_HOST, _WHAT = 16, 34


def configure(commands: Any) -> None:
    """Add the sub-command's parser."""
    parser = commands.add_parser("top", help="watch a job, or all jobs of an rdzv serve: nodes, workers, events, waits")
    add_job_flags(
        parser,
        endpoint_required=True,
        timeout=10.0,
        endpoint_help="the job's endpoint or endpoints, or that of an rdzv serve to show all of its jobs",
    )
    parser.add_argument(
        "--once", action="store_true", help="print once as text; exit with 0 if all is well, otherwise 1"
    )
    parser.add_argument("--json", action="store_true", help="print once as JSON; exit code as for --once")


def run(args: argparse.Namespace) -> int:
    """Show it until the user quits, or once; returns the exit code. Raises ``RdzvError``."""
    from rdzv_launcher.tools.top.watching import EndpointWatch

    if not 1 <= args.timeout <= 120:
        raise UsageError(f"--timeout={args.timeout:g} is not between 1 and 120 seconds")
    once = args.once or args.json
    if not once:
        _check_screen()
    request = request_of(args)
    with contextlib.closing(EndpointWatch(request, args.timeout)) as watch:
        if not once:
            from rdzv_launcher.tools.top.screen import Screen

            watch.start()
            logging.disable(logging.CRITICAL)  # log lines would be written across the screen
            try:
                Screen(watch, request).run()
            finally:
                logging.disable(logging.NOTSET)
            return 0
        try:
            data = watch.look_once()
        except TimeoutError as error:
            raise EndpointUnreachable(
                f"{request.endpoint}: {error}", remedy="Wait longer with --timeout=SECONDS."
            ) from error
    print(json.dumps(data, indent=2) if args.json else as_text(printable_data(data)), flush=True)
    return 0 if all(map(is_well, data["jobs"])) and not data["left_out"] else 1


def _check_screen() -> None:
    """Raises ``UsageError`` without a terminal, ``MissingDependency`` without Textual."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("rdzv top needs a terminal", remedy="For a pipe or a file, use `rdzv top --once`.")
    try:
        import textual  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"rdzv top needs Textual, which could not be imported: {error}",
            remedy="Install it (pip install 'rdzv-plugins[top]'), or use `rdzv top --once`.",
        ) from error


def is_well(job: Mapping[str, Any]) -> bool:
    """Whether a round is complete, and all of its nodes are working in it, or have finished."""
    found = job["round"]
    return (
        not job["problem"]
        and found is not None
        and found["state"] == "complete"
        and all(each["state"] in WELL for each in job["nodes"])
    )


def as_text(data: Mapping[str, Any]) -> str:
    """Everything, as text for ``--once``."""
    lines = []
    if len(data["jobs"]) > 1:
        lines += [*table(JOB_COLUMNS, map(job_cells, data["jobs"])), ""]
    for job in data["jobs"]:
        lines += [*headline(job, data["endpoint"]), *_nodes(job), *(f"  {each}" for each in waits(job)), ""]
    if data["left_out"]:
        lines.append(f"and {data['left_out']} more jobs")
    return "\n".join(lines).rstrip()


def headline(job: Mapping[str, Any], where: str) -> list[str]:
    """What goes on in a job, in a few lines."""
    found, nodes = job["round"], job["nodes"]
    if found is None:
        return [f"run {job['run']!r} at {where}: {job['problem'] or 'no data yet'}"]
    in_round = [
        {"workers": len(each["workers"]) if each["stage"] else None} for each in nodes if each["rank"] is not None
    ]
    lines = [f"run {job['run']!r} at {where}: {state_text({**found, 'nodes': in_round})}"]
    if found["state"] == "over" and found["progress"]:
        lines.append(found["progress"])
    if job["problem"]:
        lines.append(job["problem"])
    if job["last_end"]:
        lines.append(f"last end: {job['last_end']}")
    if found["leader"]:
        lines.append(f"led by {found['leader']}")
    return lines + domains(nodes)


def waits(job: Mapping[str, Any]) -> list[str]:
    """Who waits for which key and since when, or why that is not known; empty if nobody waits."""
    if job["waits"]:
        return ["waiting, longest first:", *job["waits"]]
    return [f"waits unknown: {job['waits_problem']}"] if job["waits_problem"] else []


def events(job: Mapping[str, Any], newest: int) -> list[str]:
    """The ``newest`` most recent events."""
    told = job["events"][-newest:] if newest > 0 else []
    return [f"{time.strftime('%H:%M:%S', time.localtime(each['at']))} {each['text']}" for each in told]


def job_cells(job: Mapping[str, Any]) -> tuple[str, ...]:
    """A job as cells for ``JOB_COLUMNS``."""
    found, nodes = job["round"] or {}, job["nodes"]
    well = [each for each in nodes if each["state"] in ("works", "done")]
    what = job["problem"] or found.get("reason") or (found.get("progress") if found.get("state") != "complete" else "")
    return (
        _short(job["run"], 20),
        str(found.get("number", "-")),
        found.get("state", "-"),
        f"{len(well)}/{len(nodes)}",
        "yes" if is_well(job) else "NO",
        _short(what or "", _WHAT),
    )


def node_cells(node: Mapping[str, Any]) -> tuple[str, ...]:
    """A node as cells for ``COLUMNS``."""
    shares = [each["cpu_percent"] for each in node["workers"] if each["cpu_percent"] is not None]
    told = bool(node["stage"])
    return (
        "-" if node["rank"] is None else str(node["rank"]),
        _short(node["host"], _HOST),
        node["state"],
        str(node["round"] or "-"),
        "-" if node["heard_s"] is None else _age(node["heard_s"]),
        "-" if node["restarts"] is None else str(node["restarts"]),
        str(len(node["workers"])) if told else "-",
        f"{sum(shares):.0f}%" if shares else "-",
        size(sum(each["memory_bytes"] for each in node["workers"])) if node["workers"] else "-",
    )


def domains(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which nodes are in which domain, one per line; empty if there is only one domain."""
    found: dict[str, list[str]] = {}
    for each in nodes:
        found.setdefault(each.get("domain", ""), []).append(
            each["host"] if each["rank"] is None else f"node {each['rank']}"
        )
    return [f"{in_words(name)}: {some(who)}" for name, who in found.items()] if len(found) > 1 else []


def worker_lines(node: Mapping[str, Any]) -> list[str]:
    """The workers of a node, one per line; or why nothing is known about them."""
    if node["problem"]:
        return [f"the agent (pid {node['pid']}) {node['problem']}"]
    lines = []
    for each in node["workers"]:
        share = "-" if each["cpu_percent"] is None else f"{each['cpu_percent']:.0f}%"
        lines.append(
            f"rank {each['rank']} (local {each['local_rank']}, pid {each['pid']}, {each['state']}): CPU {share}, "
            f"memory {size(each['memory_bytes'])}"
        )
    return lines


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns that are as wide as they need to be."""
    cells = [columns, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _nodes(job: Mapping[str, Any]) -> list[str]:
    nodes = job["nodes"]
    head, *rows = table(COLUMNS, map(node_cells, nodes))
    if not rows:
        return []
    lines = [head]
    for row, node in zip(rows, nodes, strict=True):
        lines.append(row)
        if len(nodes) <= _WORKERS_OF or node["problem"]:
            lines += [f"      {each}" for each in worker_lines(node)]
    return lines


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}~"
