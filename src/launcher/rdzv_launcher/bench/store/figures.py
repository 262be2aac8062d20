"""The figures of ``rdzv bench store`` as points, and what the figures are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import Turns
from rdzv_launcher.bench.store.cases import WORKLOADS, StoreCase, StoreSample
from rdzv_launcher.bench.store.servers import KINDS, StoreTarget

_FIGURES: dict[str, tuple[str, str, Callable[[StoreSample], float]]] = {
    # figure: title, unit, value from a sample
    "wall": ("wall time", "s", lambda sample: sample.wall_s),
    "cpu_per_request": ("CPU of the server per request", "us", lambda sample: sample.cpu_us),
    "p50": ("round trip, median", "us", lambda sample: sample.p50_us),
    "p99": ("round trip, 99th percentile", "us", lambda sample: sample.p99_us),
    "cpu_both": ("CPU of server and nodes per request", "us", lambda sample: sample.both_cpu_us),
    "grown": ("memory that the clients cost the server", "MiB", lambda sample: sample.grown_mib),
}
_CAPTION = """\
Medians (smallest .. largest) over the runs, after one that does not count; a run of more than 10 s is not repeated.
Ratios: of the two runs of each turn, the median; none where the runs of one server differ by more than the two servers.
  wall     of the phase after connecting; in the storms, in hold and in open, of connecting itself; in many, of both
  CPU      of the server's process, all its threads, user and system (schedstat), for each request that was sent.
           It holds what the kernel does to bring a reply to a client on the same machine. In open a request is a
           session; CPU of server and nodes is with that of the nodes' process, which runs Python
  p50, p99 round trips, without those waits that other clients end; in the storms from connect() to the PING's answer;
           in many those of the process and the phase that had the longest
  memory   in hold: how far the largest resident memory of the server's process is above what it was before the clients
           came; of servers that are new in each run"""
_CLOSED = """\
token, tls: of sessions alone. Workers have torch's client, which has no word for either: where a job is closed they ask
their node's proxy (rdzv bench tiered --closed).
"""
_NAMES_APART = """\
Reverse DNS: torch's servers look up every peer that they accept, and find ::ffff:127.0.0.1 in no usual hosts file. Here
they run in a mount namespace of their own with names from a hosts file that has it, and never ask a name server; the
reading of that file is in their figures. The storm "with reverse DNS as the system has it" is without that: clients
from 127.0.0.9, and the system's own resolver."""
_NAMES_AS_THEY_ARE = """\
Reverse DNS: torch's servers look up every peer that they accept, and this run was NOT allowed to keep that from name
servers (it needs `unshare --mount`: root, or user namespaces). Their storms and holds measure the name server too."""


def as_points(case: StoreCase, targets: Sequence[StoreTarget], turns: Turns[StoreSample]) -> list[Point]:
    """One point for each figure and server."""
    return [
        Point(
            "store",
            case.name,
            target.name,
            figure,
            title,
            unit,
            tuple(of(sample) for sample in turns.samples[target.name]),
            nodes=case.connections,
            axis=case.axis,
            reference=target.reference or (case.of_sessions and not target.closed),
            unfinished=turns.unfinished.get(target.name, "") or _left_out(case, turns.samples[target.name]),
        )
        for figure, (title, unit, of) in _FIGURES.items()
        if _shown(figure, case)
        for target in targets
    ]


def _shown(figure: str, case: StoreCase) -> bool:
    """Whether it is shown: memory only if that is the point of the case, both sides if the client is that of nodes."""
    return case.workload == "hold" if figure == "grown" else figure != "cpu_both" or case.of_sessions


def _left_out(case: StoreCase, samples: Sequence[StoreSample]) -> str:
    """Why there is no ratio: a storm that some clients do not survive is not a storm of that many."""
    failed = sum(sum(sample.failures.values()) for sample in samples)
    return f"{failed} of {len(samples) * case.connections} connections failed" if failed else ""


def as_details(case: StoreCase, turns: Turns[StoreSample]) -> dict[str, Any]:
    """Everything that was read in each run."""
    runs = {target: [asdict(sample) for sample in samples] for target, samples in turns.samples.items()}
    return {"title": case.title, "workload": case.workload, "connections": case.connections, "runs": runs}


def notes(case: StoreCase, turns: Turns[StoreSample]) -> list[str]:
    """What went wrong for some clients, one line each."""
    lines = []
    for target, samples in turns.samples.items():
        failures: dict[str, int] = {}
        for sample in samples:
            for reason, count in sample.failures.items():
                failures[reason] = failures.get(reason, 0) + count
        attempts = len(samples) * case.connections
        lines += [f"{target}: {count} of {attempts} connections failed: {why}" for why, count in failures.items()]
        if overflows := sum(sample.listen_overflows for sample in samples):
            lines.append(
                f"{target}: a full accept queue cost {overflows} connection attempts (TcpExt ListenOverflows, of the "
                "whole machine)"
            )
    return lines


def caption(cases: Sequence[StoreCase], targets: Sequence[StoreTarget], *, names_from_hosts: bool) -> str:
    """What the workloads, the servers and the figures are."""
    closed = _CLOSED if any(target.closed for target in targets) else ""
    kinds = [f"  {kind:10} {what}" for kind, what in KINDS.items() if any(target.kind == kind for target in targets)]
    workloads = [
        f"  {name:10} {what}" for name, what in WORKLOADS.items() if any(case.workload == name for case in cases)
    ]
    names = _NAMES_APART if names_from_hosts else _NAMES_AS_THEY_ARE
    return "\n".join([*workloads, "", *kinds, "", closed + _CAPTION, names])
