"""The figures of ``rdzv bench rendezvous``, as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.bench.measure import summarise

if TYPE_CHECKING:
    from launcher.bench.rendezvous import Result, Settings

_PHASES = ("join", "loss")
_CAPTION = """\
  ours    the handlers of backend parallel; their server is {where}
  torch   torch's DynamicRendezvousHandler on its C10dRendezvousBackend, as plain torchrun makes them

Medians (min..max) over the runs, each in a fresh process; a join of more than 20 s is not repeated. All nodes are
threads of one process on loopback: they share its interpreter lock, and need more time than as many machines would.
  join         from the first call of next_rendezvous to the last node's answer. Ours connects in that call, and each
               node dials the workers' store; torch's has connected before, and leaves the dialling to the workers
  loss         from the end of one member (its connection breaks) to the last survivor's answer in the next round.
               Nodes of torch are not told of it: here they join again at once, as when their workers have failed.
               torch counts a node as lost after 15 s; its last call, 30 s by default, is set to 1 s
  CPU          of the process, user and system, in the join and in the loss; server: what our server's threads needed
               for the join
  peak, grown  largest resident memory of the process, and how far that is above what it was with torch loaded
  requests     of a plain node in one round, signs of life left out (torch: reads and writes of the shared state, the
               mean); and what the server has counted beyond, for all nodes together: the leader's, attempts to lead
  idle         requests of all nodes in {idle:g} s after the join, signs of life left out (torch: heartbeats are writes)
"""
_NAMES_APART = """\
Reverse DNS: torch's server looks up every peer that it accepts. torch's runs have a mount namespace of their own, in
which names come from a hosts file that knows them, and never ask a name server. Ours looks nothing up."""
_NAMES_AS_THEY_ARE = """\
Reverse DNS: torch's server looks up every peer that it accepts, and this run was NOT allowed to keep that from name
servers (it needs `unshare --mount`: root, or user namespaces). Its times hold the name server's."""


def as_data(result: Result) -> dict[str, Any]:
    """The figures of one number of nodes, ready for JSON."""
    targets = {name: _target(result.nodes, samples) for name, samples in result.samples.items()}
    for name, why in result.skipped.items():
        targets[name]["skipped"] = why
    data: dict[str, Any] = {"nodes": result.nodes, "targets": targets}
    ours, torch = targets.get("ours", {}), targets.get("torch", {})
    data["ratios"] = {
        phase: round(ours[phase]["seconds"]["median"] / torch[phase]["seconds"]["median"], 4)
        for phase in _PHASES
        if ours.get(phase) and torch.get(phase)
    }
    return data


def _target(nodes: int, samples: list[dict[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {"runs": len(samples), "skipped": None}
    for phase in _PHASES:
        rounds = [sample[phase] for sample in samples if sample[phase]]
        data[phase] = _phase(nodes, rounds) if rounds else None
    for figure in ("peak_mib", "grown_mib", "server_peak_mib"):
        values = [sample[figure] for sample in samples if sample[figure] is not None]
        data[figure] = summarise(values) if values else None
    data["idle"] = next((sample["idle"] for sample in samples if sample["idle"] is not None), None)
    data["unfinished"] = next((sample["unfinished"] for sample in samples if sample["unfinished"]), None)
    return data


def _phase(nodes: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    last = rounds[-1]
    plain = {name: round(count, 2) for name, count in last["per_node"].items()}
    beyond = {name: count - nodes * plain.get(name, 0) for name, count in last["requests"].items()}
    return {figure: summarise([each[figure] for each in rounds]) for figure in ("seconds", "cpu_s", "server_cpu_s")} | {
        "requests": last["requests"],
        "per_node": plain,
        "beyond": {name: count for name, count in beyond.items() if count >= 1},
    }


def caption(settings: Settings, *, names_from_hosts: bool) -> str:
    """What the targets and the figures are."""
    where = "part of the first node's process" if settings.server == "agent" else "in a process of its own"
    names = _NAMES_APART if names_from_hosts else _NAMES_AS_THEY_ARE
    return _CAPTION.format(where=where, idle=3 * settings.ttl) + names


def as_text(case: dict[str, Any]) -> str:
    """The table of one number of nodes, as ``as_data`` gives it."""
    lines = [
        f"{case['nodes']} nodes",
        f"  {'':8}{'join s':>24}{'loss s':>24}{'CPU s: join':>13}{'loss':>8}{'server':>8}{'peak MiB':>10}{'grown':>8}",
    ]
    for name, target in case["targets"].items():
        join, loss = target["join"], target["loss"]
        if join:
            cpu = [f"{each['cpu_s']['median']:.2f}" if each else "-" for each in (join, loss)]
            server = f"{join['server_cpu_s']['median']:.2f}" if name == "ours" else "-"
            lines.append(
                f"  {name:8}{_cell(join)}{_cell(loss)}{cpu[0]:>13}{cpu[1]:>8}{server:>8}"
                f"{target['peak_mib']['median']:>10.1f}{target['grown_mib']['median']:>8.1f}"
            )
        if target["unfinished"]:
            lines.append(f"  {name:8}did not finish: {target['unfinished']}")
        elif target["skipped"]:
            lines.append(f"  {name:8}not measured: {target['skipped']}")
        if target["server_peak_mib"]:
            lines.append(f"  {'':8}peak of the server's process: {target['server_peak_mib']['median']:.1f} MiB")
        for phase in _PHASES:
            if target[phase]:
                beyond = _counts(target[phase]["beyond"]) if name == "ours" else ""
                also = f"; and {beyond}" if beyond else ""
                lines.append(f"  {'':8}requests, {phase}: {_counts(target[phase]['per_node'])}{also}")
        if target["idle"] is not None:
            lines.append(f"  {'':8}requests, idle: {_counts(target['idle']) or '0'}")
    if case["ratios"]:
        ratios = ", ".join(f"{phase} {ratio:g}" for phase, ratio in case["ratios"].items())
        lines.append(f"  ours / torch: {ratios}")
    return "\n".join([*lines, ""])


def _cell(phase: dict[str, Any] | None) -> str:
    if not phase:
        return f"{'-':>24}"
    return "{:>24}".format("{median:.3f} ({min:.3f}..{max:.3f})".format(**phase["seconds"]))


def _counts(counts: dict[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in counts.items())
