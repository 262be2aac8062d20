"""``rdzv bench transport``: what a request costs a worker by loopback, by a Unix socket, and with a client in Python.

One process is a node's proxy with its root, as many processes as there are clients are workers, and the transports take
turns. The requests are those of gloo: a worker waits for the keys of its peers one by one and gets each, sets one, and
adds to a number.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeAlias

from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.readings import exact_cpu_seconds
from rdzv_launcher.bench.method.turns import take_turns
from rdzv_launcher.bench.processes.parts import Part
from rdzv_launcher.bench.report.output import Output
from rdzv_launcher.bench.transport.settings import TransportSettings
from rdzv_launcher.bench.transport.workers import REQUESTS_PER_ROUND, Place, measure

TRANSPORTS = {
    "loopback": "torch's client by TCP to 127.0.0.1 (worker_transport=loopback)",
    "unix": "the same client over a Unix socket (worker_transport=unix)",
    "python": "a client in Python over a Unix socket, for comparison: the agents' own",
}
_FIGURES = {
    # figure: title, unit
    "wall": ("wall time of a request", "us"),
    "worker_cpu": ("CPU of the worker per request", "us"),
    "store_cpu": ("CPU of the store per request", "us"),
    "start": ("until the store is ready", "ms"),
}
_CAPTION = f"""\
Medians (smallest .. largest) over the runs, after one that does not count; a round of a worker is {REQUESTS_PER_ROUND}
requests. Ratios: of the two runs of each turn, the median; none where the runs of one transport differ by more than the
two transports.
  wall        of all workers together, from the first request to the last answer, divided by the requests of one
  worker CPU  of the workers' processes, user and system, for each request
  store CPU   of the process that has the proxy and the root, for each request
  start       until a worker's store is ready (the largest of the workers)"""
TransportSample: TypeAlias = dict[str, float]
"""A run: its figures by name."""


def run(settings: TransportSettings, args: Namespace) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, ``MissingDependency`` if the native part was not built, ``RdzvError`` when a process ends.
    """
    with Output("transport", asdict(settings), as_json=args.json, out=args.out) as output:
        for size in settings.sizes:
            for clients in settings.clients:
                _case(clients, size, settings, output)
        kinds = "\n".join(f"  {name:11} {what}" for name, what in TRANSPORTS.items())
        output.end(f"{kinds}\n\n{_CAPTION}")
    return 0


def _case(clients: int, size: int, settings: TransportSettings, output: Output) -> None:
    case = f"{clients} client{'s' if clients > 1 else ''}, values of {size} bytes"
    with _served() as place:
        turns = take_turns(
            case,
            [*TRANSPORTS],
            lambda name, turn: _sample(place, name, clients, size, settings.rounds),
            repeats=settings.repeats,
            progress=output.progress,
        )
    points = [
        Point(
            "transport",
            case,
            name,
            figure,
            title,
            unit,
            tuple(sample[figure] for sample in turns.samples[name]),
            nodes=clients,
            axis="clients",
            reference=name == "loopback",
        )
        for figure, (title, unit) in _FIGURES.items()
        for name in TRANSPORTS
    ]
    output.case(case, points)


def _sample(place: Place, transport: str, clients: int, size: int, rounds: int) -> TransportSample:
    requests = rounds * REQUESTS_PER_ROUND
    before = exact_cpu_seconds(place.pid)
    taken = measure(place, transport, clients, size=size, rounds=rounds)
    # this includes what connecting has cost the store: a request in a thousand
    store = exact_cpu_seconds(place.pid) - before
    return {
        "wall": taken.wall_s / requests * 1e6,
        "worker_cpu": taken.cpu_s / requests / clients * 1e6,
        "store_cpu": store / requests / clients * 1e6,
        "start": taken.start_s * 1e3,
    }


@contextmanager
def _served() -> Iterator[Place]:
    """A proxy and its root in a separate process."""
    with Part("node-store") as store:
        store.start()
        yield Place(store.pid, store.port, store.ready["path"])
