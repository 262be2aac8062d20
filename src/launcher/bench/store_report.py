"""The figures of ``rdzv bench store``, as data and as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from launcher.bench.measure import summarise
from launcher.bench.store_targets import KINDS, Target

if TYPE_CHECKING:
    from launcher.bench.store import Result

_FIGURES = ("wall_s", "cpu_us", "p50_us", "p99_us", "peak_mib", "grown_mib")
_RATIOS = ("wall_s", "cpu_us", "grown_mib")
_COLUMNS = (
    # figure, title, digits, with its spread
    ("wall_s", "wall s", 3, True),
    ("cpu_us", "CPU us/request", 2, True),
    ("p50_us", "p50 us", 0, False),
    ("p99_us", "p99 us", 0, False),
    ("peak_mib", "peak MiB", 1, False),
    ("grown_mib", "grown MiB", 1, False),
)
_CAPTION = """\
Medians (min..max) over the runs; a run of more than 10 s is not repeated. Ratios: of the two runs of each turn, the
median.
  wall        of the phase after connecting; in the storms and in hold, of connecting itself
  CPU         of the server's process, all its threads, user and system (schedstat), for each request that was sent.
              It holds what the kernel does to bring a reply to a client on the same machine
  p50, p99    round trips, without those waits that other clients end; in the storms from connect() to the PING's answer
  peak, grown largest resident memory of the server's process, and how far that is above what it was before the run
  overflows   connection attempts that a full accept queue cost, over all runs (TcpExt ListenOverflows, whole machine)
"""
_NAMES_APART = """\
Reverse DNS: torch's servers look up every peer that they accept, and find ::ffff:127.0.0.1 in no usual hosts file. Here
they run in a mount namespace of their own with names from a hosts file that has it, and never ask a name server; the
reading of that file is in their figures. The storm "with reverse DNS as the system has it" is without that: clients
from 127.0.0.9, and the system's own resolver."""
_NAMES_AS_THEY_ARE = """\
Reverse DNS: torch's servers look up every peer that they accept, and this run was NOT allowed to keep that from name
servers (it needs `unshare --mount`: root, or user namespaces). Their storms and holds measure the name server too."""


def as_data(result: Result) -> dict[str, Any]:
    """The figures of one case, ready for JSON."""
    targets: dict[str, Any] = {}
    for name, samples in result.samples.items():
        rows = [asdict(sample) for sample in samples]
        failures: dict[str, int] = {}
        for sample in samples:
            for reason, count in sample.failures.items():
                failures[reason] = failures.get(reason, 0) + count
        targets[name] = {
            "runs": len(rows),
            "requests": rows[0]["requests"] if rows else 0,
            "listen_overflows": sum(sample.listen_overflows for sample in samples),
            "listen_drops": sum(sample.listen_drops for sample in samples),
            "failures": failures,
            "unfinished": result.unfinished.get(name),
        } | ({figure: summarise([row[figure] for row in rows]) for figure in _FIGURES} if rows else {})
    return asdict(result.case) | {
        "title": result.case.title,
        "targets": targets,
        "ratios": _ratios(result),
    }


def _ratios(result: Result) -> dict[str, dict[str, float]]:
    """Each of ours by each of the others, run by run: the median. Memory only where it is the point."""
    figures = [figure for figure in _RATIOS if figure != "grown_mib" or result.case.workload == "hold"]
    measured = {name: [asdict(sample) for sample in samples] for name, samples in result.samples.items() if samples}
    ours = [name for name in measured if name.startswith("ours")]
    ratios: dict[str, dict[str, float]] = {}
    for mine in ours:
        for other in (name for name in measured if name not in ours):
            ratio = ratios[f"{mine} / {other}"] = {}
            for figure in figures:
                # a slow target has fewer runs
                pairs = zip(measured[mine], measured[other], strict=False)
                turns = [upper[figure] / lower[figure] for upper, lower in pairs if lower[figure]]
                if turns:
                    ratio[figure] = round(statistics.median(turns), 3)
    return ratios


def caption(targets: Sequence[Target], *, names_from_hosts: bool) -> str:
    """What the servers and the figures are."""
    kinds = [f"  {kind:11} {what}" for kind, what in KINDS.items() if any(target.kind == kind for target in targets)]
    return "\n".join([*kinds, "", _CAPTION + (_NAMES_APART if names_from_hosts else _NAMES_AS_THEY_ARE)])


def as_text(case: dict[str, Any]) -> str:
    """The table of one case, as ``as_data`` gives it."""
    return "\n".join([case["title"], *_table(case), ""])


def _table(case: dict[str, Any]) -> list[str]:
    widths = [25 if spread else 10 for *_, spread in _COLUMNS]
    titles = [title for _, title, *_ in _COLUMNS]
    lines = [f"  {'':16}" + "".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True)) + f"{'overflows':>11}"]
    for name, target in case["targets"].items():
        if target["runs"]:
            cells = [_cell(target[figure], digits, spread) for figure, _, digits, spread in _COLUMNS]
            row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(f"  {name:16}{row}{target['listen_overflows']:>11}")
        if target["unfinished"]:
            lines.append(f"  {name:16}did not finish: {target['unfinished']}")
        for reason, count in target["failures"].items():
            attempts = target["runs"] * case["connections"]
            lines.append(f"  {'':16}{count} of {attempts} connections failed: {reason}")
    for name, ratio in case["ratios"].items():
        if name.endswith("legacy"):
            continue  # the data have it
        cells = [f"{ratio[figure]:.2f}" if figure in ratio else "" for figure, *_ in _COLUMNS]
        row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {name:16}{row}".rstrip())
    return lines


def _cell(figure: dict[str, Any], digits: int, spread: bool) -> str:
    text = f"{figure['median']:.{digits}f}"
    return f"{text} ({figure['min']:.{digits}f}..{figure['max']:.{digits}f})" if spread else text
