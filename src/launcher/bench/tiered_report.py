"""The figures of ``rdzv bench tiered``, as data and as text, and how they compare with what was to be reached."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING, Any

from launcher.bench.measure import summarise
from launcher.bench.tiered_cases import INIT, Phase, Sample

if TYPE_CHECKING:
    from launcher.bench.tiered import Result

_PARTS = ("root", "proxies", "relay", "clients")
_STAGES = {
    "connect": ("connect",),
    "gloo init": INIT,
    "NCCL init": ("enrol", "nccl"),
    "barrier": ("store_barrier",),
}
_MOST_REQUESTS = 1.5  # for each rank and node
_MOST_BYTES, _FROM_RANKS, _FROM_NODES = 0.15, 1024, 128
_MOST_TIME = 0.25
_MOST_BARRIER = 2
_CAPTION = """\
Medians (min..max) over the runs, each with new processes; one that takes more than 30 s is not repeated. Ratios: of the
two runs of each turn, the median. All of it is on one machine, which plays every node: wall time holds what the nodes
would do at the same time on machines of their own.
  direct       every rank connects to the root
  tiered       every rank connects to the proxy of its node over loopback, or a Unix socket (tiered-unix)
  {delay:g} ms         with a relay between the nodes and the root, which takes half of that in each direction and lets
               any amount through; within a node there is no delay. The relay's processor time is part of the wall time
  requests     at the root: those of the ranks, or what the proxies ask (they forward, follow keys, arrive at barriers);
               what a proxy says of itself every few seconds is left out
  MB           that the root has received and sent, in the same time
  connections  at the root, after the stage
  CPU          of the processes, all their threads, user and system (schedstat); clients: the load generator
  connect      until each rank has the answer to its PING; the proxies are there before
  gloo init    each rank: ADD on torch's own key, SET of its blob, and for each of the ranks WAIT, WAIT, GET
  NCCL init    each rank: the same ADD; rank 0: SET of 128 bytes, the others: WAIT, GET
  barrier      torch's BARRIER, once"""


def as_data(result: Result) -> dict[str, Any]:
    """The figures of one case, ready for JSON."""
    case = result.case
    stages = {}
    for stage, phases in _STAGES.items():
        if all(phase in ("connect", *case.phases) for phase in phases):
            stages[stage] = _stage(result.samples, phases)
    return {
        "nodes": case.nodes,
        "ranks": case.ranks,
        "fanout": case.fanout,
        "hosts": "namespaces" if result.namespaces else "loopback",
        "load": round(os.getloadavg()[0], 2),
        "stages": stages,
        "proxies": {name: samples[-1].proxies for name, samples in result.samples.items() if samples[-1].proxies},
        "unfinished": {
            name: sample.unfinished
            for name, samples in result.samples.items()
            for sample in samples
            if sample.unfinished
        },
    }


def _stage(samples: dict[str, list[Sample]], phases: tuple[str, ...]) -> dict[str, Any]:
    """The figures of each way, and its ratios to the direct one with the same delay."""
    rows = {
        name: [_sum([sample.phases[phase] for phase in phases]) for sample in each if not sample.unfinished]
        for name, each in samples.items()
    }
    ways: dict[str, Any] = {}
    for name, each in rows.items():
        if not each:
            continue
        last = each[-1]
        ways[name] = {
            "runs": len(each),
            "wall_s": summarise([row["wall_s"] for row in each]),
            "p50_us": summarise([row["p50_us"] for row in each]),
            "root_requests": summarise([row["root_requests"] for row in each]),
            "root_by_name": last["root_by_name"],
            "root_received": summarise([row["root_received"] for row in each]),
            "root_sent": summarise([row["root_sent"] for row in each]),
            "connections": last["connections"],
            "asked": last["asked"],
            "cpu_s": {part: summarise([row["cpu_s"][part] for row in each]) for part in _PARTS},
            "ratio": _ratios(each, rows.get(name.replace(name.partition(",")[0], "direct"), []), name),
        }
    return ways


def _sum(phases: list[Phase]) -> dict[str, Any]:
    by_name: dict[str, int] = {}
    for phase in phases:
        for name, count in phase.root.items():
            by_name[name] = by_name.get(name, 0) + count
    return {
        "wall_s": sum(phase.wall_s for phase in phases),
        "p50_us": phases[-1].p50_us,
        "root_requests": sum(by_name.values()),
        "root_by_name": by_name,
        "root_received": sum(phase.root_received for phase in phases),
        "root_sent": sum(phase.root_sent for phase in phases),
        "bytes": sum(phase.root_received + phase.root_sent for phase in phases),
        "connections": phases[-1].connections,
        "asked": sum(phase.asked for phase in phases),
        "cpu_s": {part: sum(phase.cpu_s[part] for phase in phases) for part in _PARTS},
        "root_cpu_s": sum(phase.cpu_s["root"] for phase in phases),
    }


def _ratios(mine: list[dict[str, Any]], direct: list[dict[str, Any]], name: str) -> dict[str, float] | None:
    if name.startswith("direct") or not direct:
        return None
    ratios = {}
    for figure in ("wall_s", "root_requests", "bytes", "root_cpu_s"):
        # a slow way has fewer runs
        turns = [upper[figure] / lower[figure] for upper, lower in zip(mine, direct, strict=False) if lower[figure]]
        if turns:
            ratios[figure] = round(statistics.median(turns), 4)
    return ratios


def goals(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was to be reached, and what was measured."""
    found: list[dict[str, Any]] = []

    def goal(case: dict[str, Any], what: str, way: str, most: float, measured: float | None) -> None:
        if measured is not None:
            where = f"{case['ranks']} ranks on {case['nodes']} nodes, {way}"
            found.append({"goal": what, "where": where, "most": most, "measured": measured, "met": measured <= most})

    for case in cases:
        ranks, nodes = case["ranks"], case["nodes"]
        root_connections = case["fanout"] or nodes
        for stage, ways in case["stages"].items():
            for way, figures in ways.items():
                ratio = figures["ratio"] or {}
                if way.startswith("direct"):
                    continue
                if stage == "gloo init":
                    each = figures["root_requests"]["max"] / (ranks * nodes)
                    goal(case, "requests of the init at the root, for each rank and node", way, _MOST_REQUESTS, each)
                    if ranks >= _FROM_RANKS and nodes >= _FROM_NODES:
                        goal(case, "bytes of the init at the root, beside direct", way, _MOST_BYTES, ratio.get("bytes"))
                    most = _MOST_TIME if "ms" in way else 1.0
                    goal(case, "time of the init, beside direct", way, most, ratio.get("wall_s"))
                elif stage == "barrier":
                    requests = figures["root_requests"]["max"] / nodes
                    goal(case, "requests of a barrier at the root, for each node", way, _MOST_BARRIER, requests)
                    goal(case, "connections at the root", way, root_connections, figures["connections"])
    return found


def as_text(case: dict[str, Any]) -> str:
    """The table of one case, as ``as_data`` gives it."""
    fanout = f", fanout={case['fanout']}" if case["fanout"] else ""
    hosts = "nodes are network namespaces" if case["hosts"] == "namespaces" else "nodes are on loopback"
    lines = [f"{case['ranks']} ranks on {case['nodes']} nodes{fanout}; {hosts}; load average {case['load']:g}"]
    for stage, ways in case["stages"].items():
        lines.append(
            f"  {stage:20}{'wall s':>24}{'p50 us':>8}{'requests':>10}{'MB in':>9}{'MB out':>9}{'connections':>12}"
            f"{'CPU s: root':>13}{'proxies':>9}{'relay':>8}{'clients':>9}"
        )
        lines += [_line(name, figures) for name, figures in ways.items()]
        lines += [_ratio_line(name, figures) for name, figures in ways.items() if figures["ratio"]]
    lines += [f"  {name} did not finish: {why}" for name, why in case["unfinished"].items()]
    return "\n".join([*lines, ""])


def _line(name: str, figures: dict[str, Any]) -> str:
    cpu = "".join(
        f"{figures['cpu_s'][part]['median']:>{width}.3f}" for part, width in zip(_PARTS, (13, 9, 8, 9), strict=True)
    )
    return (
        f"    {name:18}{'{median:.3f} ({min:.3f}..{max:.3f})'.format(**figures['wall_s']):>24}"
        f"{figures['p50_us']['median']:>8.0f}{figures['root_requests']['median']:>10.0f}"
        f"{figures['root_received']['median'] / 1e6:>9.3f}{figures['root_sent']['median'] / 1e6:>9.3f}"
        f"{figures['connections']:>12}{cpu}"
    )


def _ratio_line(name: str, figures: dict[str, Any]) -> str:
    names = {"wall_s": "time", "root_requests": "requests", "bytes": "bytes", "root_cpu_s": "root's CPU"}
    ratios = ", ".join(f"{names[figure]} {ratio:.3g}" for figure, ratio in figures["ratio"].items())
    counts = ", ".join(f"{count} {what}" for what, count in figures["root_by_name"].items())
    return f"    {name} / direct: {ratios}; asked of the root: {counts or 'nothing'}"


def workers_text(workers: dict[str, Any] | None) -> str:
    """The table of the real workers."""
    if workers is None:
        return ""
    lines = [
        f"{workers['ranks']} workers of torch on {workers['nodes']} nodes: init_process_group('gloo')",
        f"  {'':20}{'init s':>24}{'requests':>10}{'connections':>12}",
    ]
    for name, each in workers["routes"].items():
        spread = "{median:.3f} ({min:.3f}..{max:.3f})".format(**each["init_s"])
        lines.append(f"    {name:18}{spread:>24}{each['root_requests']:>10}{each['connections']:>12}")
        lines.append(f"      {', '.join(f'{count} {what}' for what, count in each['root_by_name'].items())}")
    return "\n".join([*lines, ""])


def goals_text(reached: list[dict[str, Any]]) -> str:
    """One line for each."""
    lines = [
        f"  {'met' if each['met'] else 'MISSED':8}{each['measured']:>10.3f}  at most {each['most']:<6g}  "
        f"{each['goal']}: {each['where']}"
        for each in reached
    ]
    return "\n".join(["goals", *lines, ""])


def caption(delay_s: float) -> str:
    """What the figures are."""
    return _CAPTION.format(delay=delay_s * 1000)
