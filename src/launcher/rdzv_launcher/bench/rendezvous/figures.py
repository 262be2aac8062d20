"""The figures of ``rdzv bench rendezvous``, from the samples of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.turns import Turns
from rdzv_launcher.bench.rendezvous.settings import NATIVE, RendezvousSettings
from rdzv_launcher.bench.rendezvous.targets import RendezvousTarget

RunData = Mapping[str, Any]
"""What ``phases.RendezvousSample`` holds, as data."""

_FIXED = "not elastic: it has no further round"
_UNKNOWN = "not known: it is a handler of its own"
_CAPTION = """\
Each run has processes of its own, and the targets take turns; medians (smallest .. largest).
Nodes: {layout}, on {hosts}; no agents, no workers. {names}
  join        from the first call of next_rendezvous to the last node's answer. Handlers are made before. Those of
              parallel, tiered, etcd and static connect in that call, and each node of the first three dials the
              workers' store. Those of c10d and torch-c10d have connected before, which is left out, and leave the
              dialling to the workers. torch-static's nodes answer as soon as they have connected, but for the first
  loss        from SIGKILL of one plain node to the last survivor's answer in the next round. parallel and tiered take
              the broken connection for the node's end. Where the service does not, as etcd, the host of the node tells
              the one that leads; else the figure holds the rest of the session's {ttl:g} s. Nodes of torch's
              dynamic rendezvous (c10d, torch-c10d and every state backend) are not told: here they join again at
              once, as when their workers have failed, and wait until the lost one has sent no sign of life for 15 s.
              Their last call, 30 s by default, is as long as the limit in the join, and 1 s after the loss
  CPU         user and system, of all nodes' processes and of the service, by the number of nodes; not said where a
              service that ran before does not tell its own
  requests    of a plain node, neither first nor leading, in one round: of its session, or reads and writes of the
              state. Signs of life and retries beneath are not seen. One of ours may be several of etcd's own
  per request the service's CPU in the join by what it has counted there, or the nodes where it does not count
  memory      private memory of the nodes' processes after the join that they had not before the handlers were made
  idle        requests of all nodes after the join, signs of life apart (torch: heartbeats are writes of the state)"""
_SIMULATED = (
    "threads of {processes} processes, whose nodes share an interpreter lock and take longer than as many machines, "
    "and {alone} processes of one node each"
)
_NATIVE = """\
simulated by the load generator in {processes} processes and, the one that is lost, in another; but for
the first, which is made as an agent makes it, leads and has rank 0. The others ask what an agent's node asks, never
lead, and have no port at which others see whether they live; at most 512 of a process dial at a time. All ranks are
checked"""
_DELAYED = """
A relay holds up all bytes between a node and the endpoint: a round trip takes {delay:g} ms more. Node 0, where it
serves the endpoint itself, has no relay; nor has the way to the workers' store."""
_NAMES_APART = "Names come from a hosts file\nalone, for torch's server looks up every peer that it accepts."
_NAMES_AS_THEY_ARE = (
    "torch's server looks up\nevery peer that it accepts, and this run was NOT allowed to keep that from name servers "
    "(it needs `unshare --mount`:\nroot, or user namespaces): its times hold the name server's."
)


def points(case: str, nodes: int, targets: Sequence[RendezvousTarget], turns: Turns[RunData]) -> list[Point]:
    """The points of one number of nodes; figures that no target has do not appear."""
    found: list[Point] = []
    figures: list[tuple[str, str, str, Callable[[RunData], float | None], str]] = [
        ("join", "Time to join", "s", lambda run: _of(run, "join", "seconds"), ""),
        ("loss", "Time to join again after a loss", "s", lambda run: _of(run, "loss", "seconds"), "loss"),
        ("cpu_per_node", "CPU of the join per node", "ms", lambda run: _cpu(run, nodes), "-"),
        ("cpu_first_join", "CPU of the first node in the join", "s", lambda run: _of(run, "join", "first_cpu_s"), "-"),
        ("cpu_first_loss", "CPU of the first node after a loss", "s", lambda run: _of(run, "loss", "first_cpu_s"), "-"),
        ("requests_join", "Requests of a node in the join", "requests", lambda run: _requests(run, "join"), "asked"),
        ("requests_loss", "Requests of a node after a loss", "requests", lambda run: _requests(run, "loss"), "lost"),
        ("cpu_per_request", "CPU of the service per request", "us", _per_request, "-"),
        ("memory_per_node", "Memory of a node", "MiB", lambda run: run["memory_mib"] / nodes or None, "-"),
        ("idle", "Requests of all nodes when idle", "a minute", _idle, "-"),
    ]  # fmt: skip
    for figure, title, unit, value, kind in figures:
        for target in targets:
            runs = turns.samples[target.name]
            known = _until_unknown(map(value, runs))
            unfinished = _unfinished(kind, target, runs, turns.unfinished.get(target.name, ""), bool(known))
            if known or (unfinished and kind != "-"):
                found.append(
                    Point(
                        bench="rendezvous",
                        case=case,
                        target=target.name,
                        figure=figure,
                        title=title,
                        unit=unit,
                        samples=tuple(known),
                        nodes=nodes,
                        reference=target.reference,
                        unfinished=unfinished,
                    )
                )
    return found


def _until_unknown(values: Iterable[float | None]) -> list[float]:
    """The values before the first gap: equal places of two targets belong to one turn, so no later one can be kept."""
    known: list[float] = []
    for value in values:
        if value is None:
            break
        known.append(value)
    return known


def _unfinished(kind: str, target: RendezvousTarget, runs: Sequence[RunData], reason: str, known: bool) -> str:
    """Why there is no figure, or not one of every run."""
    if kind in ("loss", "lost") and not target.elastic:
        return _FIXED if kind == "loss" and (runs or not reason) else ""
    later = next((run["unfinished"] for run in runs if run["unfinished"]), "")
    if kind == "loss":
        return later or reason
    if kind == "" and (not known or reason):
        return reason
    if kind == "asked" and not known and runs:
        return _UNKNOWN
    return ""


def _of(run: RunData, phase: str, figure: str) -> Any:
    return None if run[phase] is None else run[phase][figure]


def _cpu(run: RunData, nodes: int) -> float | None:
    join = run["join"]
    if join is None or join["apart_cpu_s"] is None:
        return None  # without the service it would be less than that of targets whose service is in a node
    return 1000 * float(join["nodes_cpu_s"] + join["apart_cpu_s"]) / nodes


def _requests(run: RunData, phase: str) -> float | None:
    asked = _of(run, phase, "per_node")
    return None if asked is None else float(sum(asked.values()))


def _per_request(run: RunData) -> float | None:
    join = run["join"]
    if join is None or not join["service_cpu_s"]:
        return None
    requests = sum((join["served"] or join["asked"] or {}).values())
    return 1e6 * float(join["service_cpu_s"]) / requests if requests else None


def _idle(run: RunData) -> float | None:
    idle = run["idle"]
    if idle is None or idle.get("asked") is None:
        return None
    return 60 * float(sum(idle["asked"].values())) / float(idle["seconds"])


def notes(turns: Turns[RunData]) -> list[str]:
    """What a loss consists of, if the service did not report it at once."""
    lines = []
    for name, runs in turns.samples.items():
        parted = [run for run in runs if run["close"] is not None]
        if parted:
            known, after, closed = (
                statistics.median(values)
                for values in (
                    [run["loss"]["known_s"] for run in parted],
                    [run["loss"]["seconds"] - run["loss"]["known_s"] for run in parted],
                    [run["close"]["seconds"] for run in parted],
                )
            )
            lines.append(
                f"{name}: the loss is known after {known:.3f} s, the next round there {after:.3f} s later; "
                f"{closed:.3f} s after an orderly end"
            )
    return lines


def caption(settings: RendezvousSettings, *, alone: int, names_from_hosts: bool) -> str:
    """What is compared, and what is not."""
    layout = "a process each"
    if settings.simulate:
        layout = (_NATIVE if settings.simulate == NATIVE else _SIMULATED).format(
            processes=settings.processes, alone=alone
        )
    namespaces = settings.hosts == "namespaces"
    text = _CAPTION.format(
        layout=layout,
        hosts="hosts that are network namespaces, one for each process" if namespaces else "loopback",
        names=_NAMES_APART if names_from_hosts else _NAMES_AS_THEY_ARE,
        ttl=settings.ttl,
    )
    return text + (_DELAYED.format(delay=settings.delay_ms) if settings.delay_ms else "")
