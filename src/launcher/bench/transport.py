"""``rdzv bench transport``: what a request costs a worker by loopback, by a Unix socket, and with a client in Python.

One process is a node's proxy with its root, as many as there are clients are workers, and the transports take turns.
The requests are those of gloo: a worker waits for the keys of its peers one by one and gets each, sets one, and adds to
a number.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from launcher.bench.measure import exact_cpu_seconds, manifest, summarise
from launcher.bench.transport_workers import REQUESTS_PER_ROUND, Place, measure
from rdzv_plugins.errors import RdzvError

TRANSPORTS = {
    "loopback": "torch's client by TCP to 127.0.0.1 (worker_transport=loopback)",
    "unix": "the same client over a Unix socket (worker_transport=unix)",
    "python": "a client in Python over a Unix socket, for comparison: the agents' own",
}
_FIGURES = ("wall_us", "worker_cpu_us", "store_cpu_us", "start_ms")
_CAPTION = f"""\
Medians (min..max) over the runs, for each request; a round of a worker is {REQUESTS_PER_ROUND} requests. Ratios: of the
two runs of each turn, the median.
  wall        of all workers together, from the first request to the last answer, divided by the requests of one
  worker CPU  of the workers' processes, user and system, for each request
  store CPU   of the process that has the proxy and the root, for each request
  start       until a worker's store is ready (the largest of the workers)"""


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    clients: tuple[int, ...]
    sizes: tuple[int, ...]
    """Of values, in bytes."""
    rounds: int
    repeats: int


def run(settings: Settings, *, as_json: bool) -> int:
    """Measure and print; returns the exit code.

    Raises ``MissingDependency`` where the native part was not built, ``RdzvError`` when a process ends.
    """
    about, cases = manifest(), []
    if not as_json:
        print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n", flush=True)
    for clients in settings.clients:
        for size in settings.sizes:
            print(f"measuring: {clients} client(s), values of {size} bytes ...", file=sys.stderr, flush=True)
            cases.append(_case(clients, size, settings))
            if not as_json:
                print(_as_text(cases[-1]), flush=True)
    if as_json:
        print(json.dumps({"manifest": about, "settings": asdict(settings), "cases": cases}, indent=2), flush=True)
    else:
        print("\n".join(f"  {name:11} {what}" for name, what in TRANSPORTS.items()), _CAPTION, sep="\n\n", flush=True)
    return 0


def _case(clients: int, size: int, settings: Settings) -> dict[str, Any]:
    """The transports in turns, each time another one first."""
    names = list(TRANSPORTS)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with _served() as place:
        for repeat in range(settings.repeats):
            by = repeat % len(names)
            for name in [*names[by:], *names[:by]]:
                rows[name].append(_sample(place, name, clients, size, settings.rounds))
    return {
        "clients": clients,
        "bytes": size,
        "transports": {name: _summary(rows[name]) for name in names},
        "ratios": {f"{name} / loopback": _ratios(rows[name], rows["loopback"]) for name in names if name != "loopback"},
    }


def _sample(place: Place, transport: str, clients: int, size: int, rounds: int) -> dict[str, float]:
    requests = rounds * REQUESTS_PER_ROUND
    before = exact_cpu_seconds(place.pid)
    taken = measure(place, transport, clients, size=size, rounds=rounds)
    # what connecting has cost the store is in it: a request in a thousand
    store = exact_cpu_seconds(place.pid) - before
    return {
        "wall_us": taken.wall_s / requests * 1e6,
        "worker_cpu_us": taken.cpu_s / requests / clients * 1e6,
        "store_cpu_us": store / requests / clients * 1e6,
        "start_ms": taken.start_s * 1e3,
    }


@contextmanager
def _served() -> Iterator[Place]:
    """A proxy and its root in a process of their own."""
    command = [sys.executable, "-m", "launcher.bench.transport_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            if len(words) != 2:
                raise RdzvError("the process with the store proxy did not start; its reason is above")
            yield Place(process.pid, int(words[0]), words[1])
        finally:
            process.stdin.close()  # its sign to end


def _summary(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {figure: summarise([row[figure] for row in rows]) for figure in _FIGURES}


def _ratios(mine: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> dict[str, float]:
    """Run by run: the median."""
    pairs = list(zip(mine, other, strict=True))
    return {
        figure: round(statistics.median(upper[figure] / lower[figure] for upper, lower in pairs), 3)
        for figure in _FIGURES
        if all(lower[figure] for _, lower in pairs)
    }


def _as_text(case: dict[str, Any]) -> str:
    titles = ("wall us", "worker CPU us", "store CPU us", "start ms")
    lines = [f"{case['clients']} client(s), values of {case['bytes']} bytes"]
    lines.append(f"  {'':20}" + "".join(f"{title:>26}" for title in titles))
    for name, figures in case["transports"].items():
        cells = [f"{f['median']:.2f} ({f['min']:.2f}..{f['max']:.2f})" for f in (figures[key] for key in _FIGURES)]
        lines.append(f"  {name:20}" + "".join(f"{cell:>26}" for cell in cells))
    for name, ratios in case["ratios"].items():
        lines.append(f"  {name:20}" + "".join(f"{ratios.get(figure, float('nan')):26.3f}" for figure in _FIGURES))
    return "\n".join([*lines, ""])
