"""``rdzv bench rendezvous``: how long N nodes take to join, and again after a loss; any backend beside torch's own."""

from __future__ import annotations

import dataclasses
import math
import resource
import tempfile
import uuid
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

from rdzv_launcher.bench import backends
from rdzv_launcher.bench.backends import Candidate
from rdzv_launcher.bench.children import Child, Guard, names_remark
from rdzv_launcher.bench.points import DidNotFinish, Point, Turns, take_turns
from rdzv_launcher.bench.results import BenchOutput
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.kvstore.native.limits import raise_file_limit

RunData = Mapping[str, Any]
"""A sample of ``nodes.keep``."""

_FILES_PER_NODE, _FILES_ELSEWHERE, _OTHER_FILES = 2, 2, 200
_MOST_PROCESSES = 256
"""Each takes some 20 MiB, and a core now and then."""
_SLOW_S = 20.0
"""A join that takes longer is not repeated."""
_IMPORTS = {"coordination": ["rdzv_plugins.elastic.handler"], "state": ["rdzv_plugins.dynamic.handler"]}
"""What the nodes need, by what their backend is: torch is imported for torch's dynamic rendezvous alone."""
_ALONE = 4
"""Nodes that have their own process even if the others share theirs: one may lead, one be rank 0, one may go."""
_OF_CLOSED_JOBS = frozenset(("token_file", "cacert"))
"""Options of a job whose service tells strangers nothing."""
_HEARD_OF_S = 25.0
"""By torch's defaults a node is lost after three missing signs of life, five seconds apart."""
_OTHER_S = 400.0
_LATER_S = 60.0
"""How much later than the benchmark a node gives up."""
_FIXED = "not elastic: it has no further round"
_UNKNOWN = "not known: it is a handler of its own"
_CAPTION = """\
Each run has its own processes, and targets take turns; medians (smallest .. largest).
Nodes: {layout}, on loopback; no agents, no workers.
{names}
  join        from the first call of next_rendezvous to the last node's answer; handlers are made before. Nodes of
              parallel, tiered, etcd and static connect in that call, and those of the first three also dial the
              workers' store. Nodes of c10d and torch-c10d are connected before, and leave the dialling to workers.
              Nodes of torch-static, except the first, answer as soon as they are connected
  loss        from SIGKILL of one plain node to the last survivor's answer in the next round. parallel and tiered take
              the broken connection for the node's end; for etcd, the node's host tells the leader, or else the figure
              includes the rest of the session's {ttl:g} s. Nodes of torch's dynamic rendezvous (c10d, torch-c10d and
              every state backend) are not told: they join again at once, as if their workers had failed, and wait
              until the lost node has been silent for 15 s. Their last call (30 s by default) is as long as the limit
              in the join, and 1 s after the loss
  CPU         user and system, of all nodes and the service, divided by the number of nodes; unknown for a service that
              ran before and does not report it
  requests    of a plain node, neither first nor leader, in one round: of its session, or reads and writes of the
              state, without keep-alives and retries. One of ours may be several of etcd's own
  per request CPU of the service in the join, divided by the requests that it, or else the nodes, counted"""
_SIMULATED = (
    "threads of {processes} processes, whose nodes share an interpreter lock and take longer than as many machines, "
    "and {alone} processes of one node each"
)


def run(args: Namespace) -> int:
    """Measure and print; returns the exit code.

    Raises ``UsageError``, what the host raises for the name of a backend, and ``RdzvError`` if it cannot start.
    """
    _check(args)
    found = backends.candidates(args, _wanted(args.ttl, args.limit))
    output = BenchOutput(args, dict(each.version for each in found), backends=[each.name for each in found])
    with Guard() as guard, output, ExitStack() as running:
        for each in found:
            each.harness = each.harness.afresh(guard.directory)
        targets = [*found, *backends.references(args.references)]
        backends.start(found, running)
        given_up: dict[str, str] = {}
        for nodes in sorted(args.nodes):
            _case(nodes, args, targets, output, guard.directory, given_up)
        output.end(_caption(args))
    return 0


def _check(args: Namespace) -> None:
    """Raises ``UsageError`` if what is asked for does not fit into this machine."""
    raise_file_limit()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for nodes in args.nodes:
        groups = layout(nodes, args.simulate)
        if len(groups) > _MOST_PROCESSES:
            raise UsageError(
                f"--nodes={nodes} needs {len(groups)} processes, more than {_MOST_PROCESSES} on one machine",
                remedy="Add --simulate to run many nodes in few processes.",
            )
        needed = nodes * _FILES_ELSEWHERE + max(map(len, groups)) * _FILES_PER_NODE + _OTHER_FILES
        if allowed < needed:
            raise UsageError(
                f"--nodes={nodes}: the first node's process needs {needed} open files, but the limit is {allowed}",
                remedy="Raise the hard limit (ulimit -Hn), use fewer nodes, or more processes: --simulate=P.",
            )


def _case(
    nodes: int,
    args: Namespace,
    targets: Sequence[Candidate],
    output: BenchOutput,
    files: Path,
    given_up: dict[str, str],
) -> None:
    """Measure one number of nodes. A target that does not finish is not asked for more."""
    case = f"{nodes} nodes"
    by_name = {each.name: each for each in targets}

    def once(name: str, turn: int) -> RunData:
        try:
            sample = run_once(by_name[name], nodes, args, loss=turn >= 0, files=files)
        except RdzvError as error:
            output.say(f"{name}, {nodes} nodes: {error}")
            first, *others = str(error).splitlines()  # what has failed, and the last of its last words
            raise DidNotFinish(f"{first}: {others[-1].strip(' |')}" if others else first) from None
        if sample["join"] is None:
            raise DidNotFinish(sample["unfinished"])
        return sample

    turns = take_turns(
        case,
        [*by_name],
        once,
        repeats=args.repeats,
        begins=output.begins,
        warm_up=not args.quick,
        given_up=given_up,
        once=lambda sample: bool(sample["unfinished"]) or sample["join"]["seconds"] > _SLOW_S,
    )
    processes = len(layout(nodes, args.simulate))
    more = {"nodes": nodes, "processes": processes, "targets": turns.samples}
    output.case(case, _points(case, nodes, targets, turns), details=more)
    for name, samples in turns.samples.items():
        unfinished = next((sample["unfinished"] for sample in samples if sample["unfinished"]), "")
        if unfinished:
            given_up.setdefault(name, f"{unfinished} ({case})")


def _wanted(ttl: float, limit_s: float) -> Mapping[str, str]:
    """Options for a benchmark: rounds wait for all nodes, and the benchmark loses patience first.

    All nodes are asked to dial the workers' store at once here, on few cores. torch's signs of life keep their
    defaults: more of them would slow its nodes down while they join.
    """
    patience = f"{ttl + limit_s + _LATER_S:g}"
    return {
        "ttl": f"{ttl:g}",
        "timeout": patience,
        "join_timeout": patience,
        "reach_timeout": f"{ttl + limit_s:g}",
        "last_call_timeout": f"{limit_s:g}",
        "allow_same_host": "true",
        "keep_alive_interval": "5",
        "keep_alive_max_attempt": "3",
    }


# one run: what its nodes need, and the process that keeps them


def layout(nodes: int, processes: int) -> list[range]:
    """The numbers of the nodes in each process; ``processes`` 0: one each.

    The first holds node 0, and as many others as any.
    """
    if not processes:
        return [range(number, number + 1) for number in range(nodes)]
    end = nodes - min(_ALONE, nodes - 1)
    each = math.ceil(end / min(processes, end))
    groups = [range(start, min(start + each, end)) for start in range(0, end, each)]
    return groups + [range(number, number + 1) for number in range(end, nodes)]


def run_once(target: Candidate, nodes: int, args: Namespace, *, loss: bool, files: Path) -> dict[str, Any]:
    """One run in fresh processes; returns a sample of ``keep``. Raises ``RdzvError``.

    ``loss``: whether that is measured after the first round; ``files``: a directory for what this run needs,
    deleted with it.
    """
    from rdzv_launcher.bench.nodes import keep

    harness, traits = target.harness, target.traits
    closed = not _OF_CLOSED_JOBS.isdisjoint(harness.conf)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(dir=files)))
        with backends.asking_harness("its harness gave no endpoint"):
            endpoint = harness.endpoint(directory)
        with backends.asking_harness("its harness did not list its processes"):
            pids = [*harness.service.pids] if harness.service else []
        apart = target.runs or harness.service is not None  # in none of the nodes
        probe = (traits.probe or harness.probe) if harness.dialled and not closed else ""
        request = harness.request(
            endpoint,
            run_id=f"bench-{uuid.uuid4().hex[:8]}",
            min_nodes=nodes - 1 if target.elastic else nodes,
            max_nodes=nodes,
            node_rank=None,
        )
        heard_of_s = 0.0 if harness.kind == "coordination" else _HEARD_OF_S
        task = {
            "target": target.name,
            "imports": [*_IMPORTS.get(harness.kind, ()), *traits.imports],
            "request": dataclasses.replace(request, conf=dict(harness.conf)),
            "ranks": Capability.NODE_RANK in target.capabilities and not target.elastic,
            "says_who_serves": "is_host" in target.free,  # otherwise each tries to, which takes long on one machine
            "first_serves": harness.dialled and not apart,
            "addresses": target.reference or harness.kind == "state",
            "timeout_s": args.ttl + args.limit + _LATER_S,
            "processes": layout(nodes, args.simulate),
            "limit_s": args.limit,
            "unheard_s": max(2 * args.ttl, heard_of_s),
            "loss": loss,
            "service": {"probe": probe, "endpoint": endpoint, "pids": pids, "apart": apart},
        }
        what = "the process that keeps its nodes"
        fork_server = running.enter_context(Child(what, keep, task, environment=harness.environment, end_limit_s=0))
        sample: dict[str, Any] = fork_server.answer(_OTHER_S + 3 * args.limit + 2 * task["unheard_s"])
        return sample


# the figures


_FIGURES = {
    # figure: title, unit
    "join": ("Time to join", "s"),
    "loss": ("Time to join again after a loss", "s"),
    "cpu_per_node": ("CPU of the join per node", "ms"),
    "requests_join": ("Requests of a node in the join", "requests"),
    "requests_loss": ("Requests of a node after a loss", "requests"),
    "cpu_per_request": ("CPU of the service per request", "us"),
}


def _values(run: RunData, nodes: int) -> Mapping[str, float | None]:
    """The figures of a run with so many nodes; None for what is unknown."""
    join, loss = run["join"] or {}, run["loss"] or {}
    apart_s, service_s = join.get("apart_cpu_s"), join.get("service_cpu_s")
    requests = sum((join.get("served") or join.get("asked") or {}).values())
    return {
        "join": join.get("seconds"),
        "loss": loss.get("seconds"),
        # without the service it would be less than that of targets whose service is in a node
        "cpu_per_node": None if apart_s is None else 1000 * (join["nodes_cpu_s"] + apart_s) / nodes,
        "requests_join": float(sum(join["per_node"].values())) if "per_node" in join else None,
        "requests_loss": float(sum(loss["per_node"].values())) if "per_node" in loss else None,
        "cpu_per_request": 1e6 * service_s / requests if service_s and requests else None,
    }


def _points(case: str, nodes: int, targets: Sequence[Candidate], turns: Turns[RunData]) -> list[Point]:
    """The points of one number of nodes; figures that no target has do not appear."""
    found = []
    for figure, (title, unit) in _FIGURES.items():
        for target in targets:
            runs = turns.samples[target.name]
            # equal places of two targets belong to one turn, so nothing after a gap can be kept
            known = list(takewhile(lambda each: each is not None, (_values(run, nodes)[figure] for run in runs)))
            why = turns.unfinished.get(target.name, "")
            why = _missing(figure, target, runs, why, unknown=not known)
            samples = tuple(each for each in known if each is not None)
            if known or why:
                found.append(
                    Point("rendezvous", case, target.name, figure, title, unit, samples, nodes, "nodes",
                          target.reference, why)
                )  # fmt: skip
    return found


def _missing(figure: str, target: Candidate, runs: Sequence[RunData], why: str, *, unknown: bool) -> str:
    """Why there is no figure, or not one of every run; ``why`` the target was not measured as often as others."""
    if figure == "loss" and not target.elastic:
        return _FIXED if runs or not why else ""
    if figure == "loss":
        return next((run["unfinished"] for run in runs if run["unfinished"]), "") or why
    if figure == "requests_join" and runs and unknown:
        return _UNKNOWN
    return why if figure == "join" else ""


def _caption(args: Namespace) -> str:
    """What is compared, and what is not."""
    alone = sum(len(group) == 1 for group in layout(max(args.nodes), args.simulate))
    threads = _SIMULATED.format(processes=args.simulate, alone=alone)
    return _CAPTION.format(layout=threads if args.simulate else "a process each", names=names_remark(), ttl=args.ttl)
