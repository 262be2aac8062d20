"""The figures of ``rdzv bench tiered`` as points, and what the figures are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import Turns
from rdzv_launcher.bench.tiered.cases import STAGES, TieredCase, TieredPhase, TieredSample, Way

FIGURES: dict[str, tuple[str, str, Callable[[TieredPhase], float]]] = {
    # figure: title, unit, value from a stage
    "wall": ("wall time", "s", lambda stage: stage.wall_s),
    "root_requests": ("requests at the root", "requests", lambda stage: stage.root_requests),
    "root_bytes": ("bytes at the root", "bytes", lambda stage: stage.root_bytes),
    "cpu": ("CPU of root and proxies", "s", lambda stage: stage.cpu_s["root"] + stage.cpu_s["proxies"]),
}
_CAPTION = """\
Medians (smallest .. largest) over the runs, each with new processes; one goes before them that does not count (not with
--repeats=1), and one that takes more than 30 s is not repeated. Ratios: of the two runs of each turn, the median; none
where the runs of one way differ by more than the two ways. All of it is on one machine, which plays every node: wall
time holds what the nodes would do at the same time on machines of their own.
  direct      every rank connects to the root
  tiered      every rank connects to the proxy of its node over loopback, or a Unix socket (tiered-unix); fanout=K: the
              proxies of K nodes dial the root, and those of the other nodes dial one of these
  echo        as tiered, with a bare loop in the place of each proxy: one recv and one send for each message of the same
              size, and nothing else, also not what comes from the root. The least that any proxy could cost
{closed}{delay}\
  requests    at the root: those of the ranks, or what the proxies ask (they forward, follow keys, arrive at barriers);
              what a proxy says of itself every few seconds is left out
  bytes       that the root has received and sent, in the same time
  CPU         of the processes of root and proxies, all their threads, user and system (schedstat)
  gloo init   each rank: ADD on torch's own key, SET of its blob, and for each of the ranks WAIT, WAIT, GET
  NCCL init   each rank: the same ADD; rank 0: SET of 128 bytes, the others: WAIT, GET
  barrier     torch's BARRIER, once
  workers     of torch, each a process: init_process_group('gloo')"""
_CLOSED = """\
  {closed:<12}tiered once more: root and proxies prove to each other that they know a token, or speak TLS, and a proxy
              asks the kernel whose each worker is
"""
_DELAY = """\
  {delay:<12}with a relay between the nodes and the root, which takes half of that in each direction and lets any amount
              through; within a node there is no delay. The relay's processor time is part of the wall time
"""


def stages(case: TieredCase) -> list[str]:
    """The stages that make cases of their own; how the ranks connect is in their details."""
    return [name for name, phases in STAGES.items() if set(phases) <= set(case.phases)]


def as_points(case: TieredCase, stage: str, ways: Sequence[Way], turns: Turns[TieredSample]) -> list[Point]:
    """One stage of the runs by ``ways``, which have the same delay."""
    delay = f", {ways[0].delay}" if ways[0].delay else ""
    return [
        Point(
            "tiered",
            f"{case.name}, {stage}{delay}",
            way.target,
            figure,
            title,
            unit,
            tuple(of(_stage(sample, stage)) for sample in turns.samples[way.name]),
            nodes=case.nodes,
            reference=way.reference,
            unfinished=turns.unfinished.get(way.name, ""),
        )
        for figure, (title, unit, of) in FIGURES.items()
        for way in ways
    ]


def as_details(stage: str, ways: Sequence[Way], turns: Turns[TieredSample], *, namespaces: bool) -> dict[str, Any]:
    """All that was read in each run: of the stage, of connecting before it, and of the proxies in the whole run."""
    return {
        "hosts": "namespaces" if namespaces else "loopback",
        "runs": {
            way.target: [
                {
                    **asdict(_stage(sample, stage)),
                    "connect": asdict(_stage(sample, "connect")),
                    "proxies": sample.proxies,
                }
                for sample in turns.samples[way.name]
            ]
            for way in ways
        },
    }


def _stage(sample: TieredSample, name: str) -> TieredPhase:
    stage = sample.stage(name)
    assert stage is not None, "one of the case's own"
    return stage


def caption(ways: Sequence[Way]) -> str:
    """The sentence above the figures that says what they are."""
    delays = dict.fromkeys(way.delay for way in ways if way.delay)
    closed = ", ".join(way.closed for way in ways if way.closed)
    return _CAPTION.format(
        closed=_CLOSED.format(closed=closed) if closed else "",
        delay="".join(_DELAY.format(delay=delay) for delay in delays),
    )
