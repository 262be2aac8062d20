"""The figures of ``rdzv bench rendezvous``, as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.bench.measure import summarise

if TYPE_CHECKING:
    from launcher.bench.rendezvous import Result, Settings

_PHASES = ("join", "loss", "close")
_RATIOS = (("parallel", "torch"), ("etcd", "parallel"))
_TARGETS = {
    "parallel": "our handlers over backend parallel; their server is {where}",
    "etcd": "our handlers over backend etcd: one etcd in a process of its own, whose data is in {etcd_data}",
    "torch": "torch's DynamicRendezvousHandler on its C10dRendezvousBackend, as plain torchrun makes them",
}
_CAPTION = """\

Medians (min..max) over the runs, each in a fresh process; a join of more than 20 s is not repeated. All nodes are
threads of one process on loopback: they share its interpreter lock, and need more time than as many machines would.
Over etcd they share one more thread, on which all of them talk to it. Garbage is collected between the rounds only.
  join         from the first call of next_rendezvous to the last node's answer. Ours connects in that call, and each
               node dials the workers' store; torch's has connected before, and leaves the dialling to the workers
  loss         from the end of one member to the last survivor's answer in the next round. Its connection breaks, which
               parallel takes for its end. etcd does not: it waits until the member's lease ends ({ttl:g} s after its
               last sign of life, or up to a second later), and that is in the figure; below is what remains from when
               etcd said so. Nodes of torch are not told: here they join again at once, as when their workers have
               failed. torch counts a node as lost after 15 s; its last call, 30 s by default, is set to 1 s
  closed       the same after an orderly end, at which the member gives its lease back
  CPU          of the process, user and system, in the join and in the loss; server: what the threads of parallel's
               server, or the process of etcd, needed for the join
  peak, grown  largest resident memory of the process, and how far that is above what it was with torch loaded
  requests     of a plain node in one round, signs of life left out (torch: reads and writes of the shared state, the
               mean); and what the server has counted beyond, for all nodes together: the leader's, attempts to lead.
               etcd counts by its own methods, all nodes together
  idle         requests of all nodes in {idle:g} s after the join, signs of life apart (torch: heartbeats are writes)"""
_NAMES_APART = """
Reverse DNS: torch's server looks up every peer that it accepts. torch's runs have a mount namespace of their own, in
which names come from a hosts file that knows them, and never ask a name server. Ours looks nothing up."""
_NAMES_AS_THEY_ARE = """
Reverse DNS: torch's server looks up every peer that it accepts, and this run was NOT allowed to keep that from name
servers (it needs `unshare --mount`: root, or user namespaces). Its times hold the name server's."""


def as_data(result: Result) -> dict[str, Any]:
    """The figures of one number of nodes, ready for JSON."""
    targets = {name: _target(name, result.nodes, samples) for name, samples in result.samples.items()}
    for name, why in result.skipped.items():
        targets[name]["skipped"] = why
    return {"nodes": result.nodes, "targets": targets, "ratios": _ratios(targets)}


def _ratios(targets: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Of the medians, for each phase that both have; without the time until a loss was known, where that is apart."""
    ratios = {}
    for ours, theirs in _RATIOS:
        each = {}
        for phase in _PHASES:
            mine, other = (targets.get(name, {}).get(phase) for name in (ours, theirs))
            if mine and other:
                apart = mine["after_known_s"]
                name = f"{phase} once known" if apart else phase
                each[name] = round((apart or mine["seconds"])["median"] / other["seconds"]["median"], 4)
        if each:
            ratios[f"{ours} / {theirs}"] = each
    return ratios


def _target(name: str, nodes: int, samples: list[dict[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {"runs": len(samples), "skipped": None}
    for phase in _PHASES:
        rounds = [sample[phase] for sample in samples if sample[phase]]
        data[phase] = _phase(name, nodes, rounds) if rounds else None
    for figure in ("peak_mib", "grown_mib", "server_peak_mib"):
        values = [sample[figure] for sample in samples if sample[figure] is not None]
        data[figure] = summarise(values) if values else None
    for what in ("idle", "signs"):
        data[what] = next((sample[what] for sample in samples if sample[what] is not None), None)
    data["unfinished"] = next((sample["unfinished"] for sample in samples if sample["unfinished"]), None)
    return data


def _phase(name: str, nodes: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    last = rounds[-1]
    plain = {request: round(count, 2) for request, count in last["per_node"].items()}
    beyond = {request: count - nodes * plain.get(request, 0) for request, count in last["requests"].items()}
    data = {figure: summarise([each[figure] for each in rounds]) for figure in ("seconds", "cpu_s", "server_cpu_s")}
    known = [each for each in rounds if each["known_s"] is not None]
    return data | {
        "known_s": summarise([each["known_s"] for each in known]) if known else None,
        "after_known_s": summarise([each["seconds"] - each["known_s"] for each in known]) if known else None,
        "requests": last["requests"],
        "per_node": plain,
        # etcd's methods are not our requests: one of ours may be several of its own
        "beyond": {request: count for request, count in beyond.items() if count >= 1} if name != "etcd" else None,
        "counted_per_node": round(sum(last["requests"].values()) / nodes, 2),
        "syncs": last["syncs"],
        "sync_s": last["sync_s"],
    }


def caption(settings: Settings, *, names_from_hosts: bool) -> str:
    """What the targets and the figures are."""
    where = "part of the first node's process" if settings.server == "agent" else "in a process of its own"
    targets = "".join(f"  {name:13}{_TARGETS[name]}\n" for name in settings.targets)
    text = (targets + _CAPTION).format(
        where=where, etcd_data=settings.etcd_data, ttl=settings.ttl, idle=3 * settings.ttl
    )
    if "torch" in settings.targets:
        text += _NAMES_APART if names_from_hosts else _NAMES_AS_THEY_ARE
    return text


def as_text(case: dict[str, Any]) -> str:
    """The table of one number of nodes, as ``as_data`` gives it."""
    lines = [
        f"{case['nodes']} nodes",
        f"  {'':10}{'join s':>24}{'loss s':>24}{'CPU s: join':>13}{'loss':>8}{'server':>8}{'peak MiB':>10}{'grown':>8}",
    ]
    for name, target in case["targets"].items():
        lines += _lines(name, target)
    for pair, phases in case["ratios"].items():
        lines.append(f"  {pair}: {', '.join(f'{phase} {ratio:g}' for phase, ratio in phases.items())}")
    return "\n".join([*lines, ""])


def _lines(name: str, target: dict[str, Any]) -> list[str]:
    lines = []
    join, loss, close = (target[phase] for phase in _PHASES)
    if join:
        cpu = [f"{each['cpu_s']['median']:.2f}" if each else "-" for each in (join, loss)]
        server = f"{join['server_cpu_s']['median']:.2f}" if name != "torch" else "-"
        lines.append(
            f"  {name:10}{_spread(join['seconds']):>24}{_spread(loss['seconds']) if loss else '-':>24}"
            f"{cpu[0]:>13}{cpu[1]:>8}{server:>8}"
            f"{target['peak_mib']['median']:>10.1f}{target['grown_mib']['median']:>8.1f}"
        )
    if target["unfinished"]:
        lines.append(f"  {name:10}did not finish: {target['unfinished']}")
    elif target["skipped"]:
        lines.append(f"  {name:10}not measured: {target['skipped']}")
    about = []
    if loss and loss["known_s"]:
        about.append(f"loss: known after {_spread(loss['known_s'])} s, then {_spread(loss['after_known_s'])} s")
    if close:
        about.append(f"closed: {_spread(close['seconds'])} s, of which until known {_spread(close['known_s'])} s")
    for phase in _PHASES:
        if target[phase]:
            about += _requests(phase, target[phase])
    if target["idle"] is not None:
        signs = f"; signs of life: {target['signs']}" if name != "torch" else ""
        about.append(f"requests, idle: {_counts(target['idle']) or '0'}{signs}")
    if join and join["syncs"]:
        about.append(f"written to disk in the join: {join['syncs']} times, {join['sync_s']:.2f} s")
    if target["server_peak_mib"]:
        about.append(f"peak of the server's process: {target['server_peak_mib']['median']:.1f} MiB")
    return lines + [f"  {'':10}{line}" for line in about]


def _requests(phase: str, figures: dict[str, Any]) -> list[str]:
    line = f"requests, {phase}: {_counts(figures['per_node'])}"
    if figures["beyond"] is not None:
        return [f"{line}; and {_counts(figures['beyond'])}" if figures["beyond"] else line]
    return [line, f"  counted by etcd, {figures['counted_per_node']:g} a node: {_counts(figures['requests'])}"]


def _spread(summary: dict[str, Any] | None) -> str:
    return "{median:.3f} ({min:.3f}..{max:.3f})".format(**summary) if summary else "-"


def _counts(counts: dict[str, float]) -> str:
    return ", ".join(f"{count:g} {name}" for name, count in counts.items())
