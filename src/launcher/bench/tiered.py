"""``rdzv bench tiered``: what the start of a job asks of the workers' store, through proxies and without them.

The ranks are connections of the native load generator, which checks every reply; they ask what torch's ranks ask, one
request after the other. Root, proxies and relay have processes of their own, new ones for every run; the ways take
turns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.bench.measure import manifest
from launcher.bench.store_cases import load_module
from launcher.bench.tiered_cases import INIT, Case, Sample, Way, measure
from launcher.bench.tiered_network import Network, fits, may_have_namespaces
from launcher.bench.tiered_report import as_data, as_text, caption, goals, goals_text, workers_text
from launcher.bench.tiered_workers import measure_workers
from rdzv_plugins.kvstore.limits import raise_file_limit
from rdzv_plugins.kvstore.server import native_part

_SLOW_S = 30.0
"""A way that takes longer is not repeated."""


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    nodes: tuple[int, ...]
    """Of gloo's start; empty: not at all."""
    per_node: int
    routes: tuple[str, ...]
    delay_s: float
    """Of a round trip between a node and the root: each way is measured with and without; 0: only without."""
    many_nodes: int
    """Of NCCL's start; 0: not at all."""
    many_per_node: int
    fanout: int
    workers: tuple[int, int] | None
    """Nodes, and real workers on each; None: none."""
    hosts: str
    repeats: int
    limit_s: float


@dataclass
class Result:
    """The samples of a case, of each way in the order of its runs."""

    case: Case
    namespaces: bool
    samples: dict[str, list[Sample]] = field(default_factory=dict)


def run(settings: Settings, *, as_json: bool) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` where the native parts were not built, and ``RdzvError`` for a wrong
    reply or a process that ends.
    """
    load_module()
    native_part()
    raise_file_limit()
    namespaces = may_have_namespaces(settings.hosts)
    about = manifest()
    if not as_json:
        print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n", flush=True)
    cases = []
    for case, ways in _cases(settings):
        cases.append(as_data(_measure(case, ways, settings.repeats, namespaces=namespaces and fits(case.nodes))))
        if not as_json:  # at once: the whole takes minutes
            print(as_text(cases[-1]), flush=True)
    workers = _measure_workers(settings, namespaces=namespaces)
    reached = goals(cases)
    if as_json:
        data = {"manifest": about, "cases": cases, "workers": workers, "goals": reached}
        print(json.dumps(data, indent=2), flush=True)
    else:
        print("\n".join([workers_text(workers), goals_text(reached), caption(settings.delay_s)]), flush=True)
    return 0


def _cases(settings: Settings) -> list[tuple[Case, list[Way]]]:
    delays = [0.0, settings.delay_s] if settings.delay_s else [0.0]
    ways = [Way(route, delay) for delay in delays for route in settings.routes]
    cases = [
        (Case(nodes, settings.per_node, (*INIT, "store_barrier"), settings.limit_s), ways) for nodes in settings.nodes
    ]
    if settings.many_nodes:
        phases = ("enrol", "nccl", "store_barrier")
        case = Case(settings.many_nodes, settings.many_per_node, phases, settings.limit_s)
        cases.append((case, [Way(route) for route in settings.routes]))
        if settings.fanout and "tiered" in settings.routes:
            cases.append((replace(case, fanout=settings.fanout), [Way("tiered")]))
    return cases


def _measure(case: Case, ways: Sequence[Way], repeats: int, *, namespaces: bool) -> Result:
    """One case: the ways in turns, each time another one first."""
    result = Result(case, namespaces, {way.name: [] for way in ways})
    print(f"measuring: {case.ranks} ranks on {case.nodes} nodes ...", file=sys.stderr, flush=True)
    with Network(case.nodes, namespaces=namespaces) as network:
        for repeat in range(repeats):
            first = repeat % len(ways)
            for way in [*ways[first:], *ways[:first]]:
                samples = result.samples[way.name]
                if not samples or (not samples[-1].unfinished and samples[-1].wall_s < _SLOW_S):
                    samples.append(measure(case, way, network))
    return result


def _measure_workers(settings: Settings, *, namespaces: bool) -> dict[str, Any] | None:
    if settings.workers is None:
        return None
    nodes, per_node = settings.workers
    print(f"measuring: {nodes * per_node} real workers ...", file=sys.stderr, flush=True)
    with Network(nodes, namespaces=namespaces) as network:
        return measure_workers(network, per_node, settings.routes, repeats=settings.repeats, limit_s=settings.limit_s)
