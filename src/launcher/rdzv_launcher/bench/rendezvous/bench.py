"""``rdzv bench rendezvous``: how long N nodes take to join, and again after a loss; any backend beside torch's own."""

from __future__ import annotations

import resource
import tempfile
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rdzv_launcher.bench import backends
from rdzv_launcher.bench.method.turns import DidNotFinish, take_turns
from rdzv_launcher.bench.processes.guard import Guard
from rdzv_launcher.bench.processes.hosts import Network, fits
from rdzv_launcher.bench.processes.names import hosts_file_only
from rdzv_launcher.bench.rendezvous.figures import RunData, caption, notes, points
from rdzv_launcher.bench.rendezvous.run import AlsoMeasured, layout, run_once, shape
from rdzv_launcher.bench.rendezvous.settings import NATIVE, RendezvousSettings
from rdzv_launcher.bench.rendezvous.targets import (
    RendezvousTarget,
    closed,
    details,
    references,
    require_server,
    target,
    wanted,
)
from rdzv_launcher.bench.report.output import Output
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.kvstore.native.limits import raise_file_limit

_FILES_PER_NODE, _FILES_ELSEWHERE, _OTHER_FILES = 2, 2, 200
_MOST_PROCESSES = 256
"""Each takes some 20 MiB, and a core now and then."""
_MOST_IDLE = 16
"""With more, what idle nodes ask is measured with --quick only: it takes time, and is nothing or grows with them."""
_SLOW_S = 20.0
"""A join that takes longer is not repeated."""


def run(asked: RendezvousSettings, args: Namespace) -> int:
    """Measure and print; returns the exit code. ``args`` come from ``output.add_flags`` and ``backends.add_flags``.

    Raises ``UsageError``, what the host raises for the name of a backend, and ``RdzvError`` if it cannot start.
    """
    settings = asked.resolved()
    for nodes in settings.nodes:
        _require_room(nodes, settings)
    beside = references(settings.references)
    found = backends.candidates(args, wanted(settings.ttl, settings.limit_s))
    given = {name for name, _, _ in (text.partition("=") for text in args.rdzv_endpoint)}
    options = asdict(settings) | {"backends": [each.name for each in found], "conf": args.rdzv_conf}
    plugins = dict(each.version for each in found)
    with Guard(Path(settings.etcd_data)) as guard, ExitStack() as running:
        for each in found:
            each.harness = each.harness.afresh(guard.below)
        everyone = [target(each, not given.isdisjoint((each.name, *each.entry.backend.aliases))) for each in found]
        require_server(settings.server, everyone)
        ways = [
            closed(each, way, Path(running.enter_context(tempfile.TemporaryDirectory())))
            for each in everyone
            if each.native
            for way in settings.closed
        ]
        targets = [*everyone, *ways, *beside]
        output = running.enter_context(Output("rendezvous", options, as_json=args.json, out=args.out, plugins=plugins))
        given_up = backends.start(found, running, asked_for=args.backends is not None)
        for one in targets:
            if why := one.why_not(delay=settings.delay_ms > 0, native=settings.simulate == NATIVE):
                given_up.setdefault(one.name, why)
        prefix = hosts_file_only(guard.directory)
        for nodes in sorted(settings.nodes):
            _case(nodes, settings, targets, output, prefix or [], guard.directory, given_up)
        alone = sum(len(group) == 1 for group in layout(max(settings.nodes), settings))
        output.end(caption(settings, alone=alone, names_from_hosts=prefix is not None))
    return 0


def _case(
    nodes: int,
    settings: RendezvousSettings,
    targets: list[RendezvousTarget],
    output: Output,
    prefix: list[str],
    files: Path,
    given_up: dict[str, str],
) -> None:
    """Measure one number of nodes. A target that does not finish is not asked for more."""
    case = f"{nodes} nodes"
    by_name = {each.name: each for each in targets}
    idle_asked: set[str] = set()
    processes, _ = shape(nodes, settings)
    with ExitStack() as running:
        network = None
        if settings.hosts == "namespaces":
            network = running.enter_context(Network(processes, namespaces=True))

        def once(name: str, turn: int) -> RunData:
            idle = turn >= 0 and name not in idle_asked and (settings.quick or nodes <= _MOST_IDLE)
            what = AlsoMeasured(idle=idle, loss=turn >= 0)
            if turn >= 0:
                idle_asked.add(name)
            try:
                sample = run_once(by_name[name], nodes, settings, what, network=network, prefix=prefix, files=files)
            except RdzvError as error:
                output.progress.say(f"{name}, {nodes} nodes: {error}")
                raise DidNotFinish(_in_one_line(error)) from None
            if sample["join"] is None:
                raise DidNotFinish(sample["unfinished"])
            return sample

        turns = take_turns(
            case,
            [*by_name],
            once,
            repeats=settings.repeats,
            progress=output.progress,
            warm_up=not settings.quick,
            given_up=given_up,
            once=lambda sample: bool(sample["unfinished"]) or sample["join"]["seconds"] > _SLOW_S,
        )
    figures = points(case, nodes, targets, turns)
    kept = {name: [details(sample) for sample in samples] for name, samples in turns.samples.items()}
    hosts = [machine.address for machine in network.nodes] if network is not None else []
    more = {"nodes": nodes, "processes": processes, "hosts": hosts, "targets": kept}
    output.case(case, figures, details=more, notes=notes(turns))
    for name, samples in turns.samples.items():
        unfinished = next((sample["unfinished"] for sample in samples if sample["unfinished"]), "")
        if unfinished:
            given_up.setdefault(name, f"{unfinished} ({case})")


def _in_one_line(error: RdzvError) -> str:
    """What has failed, and the last of its last words."""
    first, *others = str(error).splitlines()
    return f"{first}: {others[-1].strip(' |')}" if others else first


def _require_room(nodes: int, settings: RendezvousSettings) -> None:
    """Raises ``UsageError`` if this many nodes are not possible here."""
    raise_file_limit()
    processes, fullest = shape(nodes, settings)
    if processes > _MOST_PROCESSES:
        raise UsageError(
            f"--nodes={nodes}: {processes} processes are too many for one machine (at most {_MOST_PROCESSES})",
            remedy="Add --simulate: many nodes in few processes.",
        )
    if settings.hosts == "namespaces" and not fits(processes):
        raise UsageError(f"--nodes={nodes}: {processes} hosts are too many", remedy="Take --hosts=loopback.")
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    native = settings.simulate == NATIVE
    serving = nodes * (1 if native and settings.server == "process" else _FILES_ELSEWHERE)
    of_nodes = fullest * _FILES_PER_NODE
    for needed, whose in (
        (serving + (_FILES_PER_NODE if native else of_nodes) + _OTHER_FILES, "the process of the first node"),
        (of_nodes + _OTHER_FILES, "a process of the nodes"),
    ):
        if allowed < needed:
            raise UsageError(
                f"--nodes={nodes}: {whose} needs {needed} open files; it may have {allowed}",
                remedy="Raise the hard limit (ulimit -Hn), ask for fewer, or for more --processes with --simulate. "
                "With --simulate=native, --server=process takes half of them from the first node.",
            )
