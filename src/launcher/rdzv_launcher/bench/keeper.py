"""One run of ``rdzv bench rendezvous``, in a process of its own: the processes that hold the nodes, and the phases.

The keeper imports what the nodes need, once, and forks the processes that hold them, so a node costs milliseconds.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from rdzv_launcher.bench.children import die_with_me, ended_by, exact_cpu_seconds
from rdzv_launcher.bench.nodes import FIXED, NodeProcess
from rdzv_launcher.bench.points import DidNotFinish
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.testing.counts import LEAD
from rdzv_plugins.testing.harness import ServiceCounts

_ANSWER_S = 120.0
_SO_FAR_S = 20.0
_FORK = multiprocessing.get_context("fork")


def keep(connection: Connection, task: Mapping[str, Any]) -> None:
    """Measure, and send a sample. Ends without tidying up thousands of nodes: they are killed.

    ``task`` is made by ``rendezvous.run_once``. A sample has why it is ``unfinished`` (or empty), and of the phases
    ``join`` and ``loss`` each None or: the ``seconds`` from the first call, or the loss, to the last node's answer; the
    requests of a plain node (``per_node``), which is neither first nor leading, of all nodes (``asked``), and what the
    service has counted (``served``), each by name; and CPU seconds of the nodes' processes (``nodes_cpu_s``), of
    serving, wherever that happens (``service_cpu_s``), and of a service in none of those processes (``apart_cpu_s``).
    What is unknown is None.
    """
    raise_file_limit()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # as the launcher does
    gc.disable()
    for name in task["imports"]:  # none of it starts a thread that a fork would miss
        importlib.import_module(name)
    host = PluginHost.load()
    gc.freeze()
    processes = Processes()
    try:
        connection.send(KeptRun(task, processes, host).run())
    finally:
        processes.kill_all()


# the keeper's side of the processes that hold nodes


class NodesProcess:
    """A process that holds some of the nodes: a fork of the keeper, which ends with it."""

    def __init__(self, run: Callable[[Connection], None], others: Sequence[NodesProcess], numbers: Sequence[int]):
        """``run`` gets the fork's end of the connection; those of the ``others`` are closed there."""
        self.numbers = list(numbers)
        self.expected = len(numbers)
        """How many of its nodes are to join in this phase."""
        self.connection, theirs = _FORK.Pipe()
        ends_with_me = die_with_me()

        def forked() -> None:
            ends_with_me()
            for each in (self, *others):
                each.connection.close()
            run(theirs)

        self.process = _FORK.Process(target=forked)
        self.process.start()
        theirs.close()

    def send(self, do: str, **what: Any) -> None:
        """Send a command, which is a method of ``NodeProcess``."""
        with contextlib.suppress(OSError):  # its end is noticed where its answer is waited for
            self.connection.send({"do": do, **what})

    def reap(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        self.connection.close()
        self.process.join()
        return self.process.exitcode or 0


class Processes:
    """All live processes with nodes. Used only by the main thread."""

    def __init__(self) -> None:
        self.living: list[NodesProcess] = []

    def ask(
        self, children: Iterable[NodesProcess], key: str, limit_s: float, late: str
    ) -> dict[NodesProcess, dict[str, Any]]:
        """Wait for an answer with ``key`` from each. Raises ``DidNotFinish``, after ``limit_s`` with ``late``."""
        deadline = time.perf_counter() + limit_s
        wanted, found = set(children), dict[NodesProcess, dict[str, Any]]()
        while wanted - found.keys():
            rest = deadline - time.perf_counter()
            if rest <= 0:
                raise DidNotFinish(f"{late} after {limit_s:g} s")
            by_connection: dict[Any, NodesProcess] = {child.connection: child for child in self.living}
            for ready in wait(list(by_connection), rest):
                answer = self._hear(by_connection[ready])
                if key in answer:
                    found[by_connection[ready]] = answer
        return found

    def kill_all(self) -> None:
        """Kill them, and wait for their ends."""
        for child in self.living:
            child.process.kill()
        for child in self.living:
            child.reap()

    def _hear(self, child: NodesProcess) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = child.connection.recv()
        except (EOFError, OSError):
            self.living.remove(child)
            raise DidNotFinish(f"a process with {len(child.numbers)} nodes {ended_by(child.reap())}") from None
        if "gave_up" in answer:
            raise DidNotFinish(f"a node gave up: {answer['gave_up']}")
        return answer


# what a run finds out, phase by phase


@dataclass
class NodesState:
    """What is known at one moment, of the nodes and of their service since it started."""

    nodes: dict[int, dict[str, Any]]
    cpu_s: dict[NodesProcess, tuple[float, float]]
    """CPU time by process: before it said all this, and after."""
    served: Mapping[str, float] | None
    """What the service has been asked, by name, without signs of life; None if it does not say."""
    service_cpu_s: float | None
    """CPU time of serving, wherever that happens; None if that cannot be told from the rest."""
    apart_cpu_s: float | None
    """CPU time of a service that is in none of the nodes' processes; None if unknown."""

    def asked(self, numbers: Collection[int]) -> dict[str, float] | None:
        """How many requests of each kind these nodes have sent."""
        if any(self.nodes[number]["asked"] is None for number in numbers):
            return None
        total: Counter[str] = Counter()
        for number in numbers:
            total.update(self.nodes[number]["asked"])
        return dict(total)

    def cpu_since(self, before: NodesState) -> float:
        """CPU time since then of the processes that still live."""
        return sum(now - before.cpu_s[each][1] for each, (now, _) in self.cpu_s.items())


def served(service: Mapping[str, Any]) -> tuple[Mapping[str, float] | None, float | None, float | None]:
    """The last three of a ``NodesState``. Raises ``OSError`` and ``RdzvError`` if it should answer and does not.

    ``service`` has ``probe`` (its harness's, or empty), ``endpoint``, ``pids`` and ``apart``. ``apart``: it is in none
    of the nodes' processes; ``pids``: its own, as far as they are known here.
    """
    pids: list[int] = service["pids"]
    pids_s = sum(map(exact_cpu_seconds, pids))  # before it is asked for figures, which costs it some
    unseen = service["apart"] and not pids
    if not service["probe"]:
        return None, pids_s if pids else None, None if unseen else pids_s
    module, _, function = service["probe"].partition(":")
    probe: Callable[[Endpoint], ServiceCounts] = getattr(importlib.import_module(module), function)
    counts = probe(parse_endpoint(service["endpoint"], None))
    cpu_s = pids_s if counts.cpu_s is None else counts.cpu_s
    return counts.requests, cpu_s, cpu_s if unseen else pids_s


class KeptRun:
    """The phases that the nodes go through."""

    def __init__(self, task: Mapping[str, Any], processes: Processes, host: PluginHost) -> None:
        self._task, self._processes = task, processes
        living = processes.living
        for numbers in task["processes"]:
            living.append(NodesProcess(NodeProcess(host, task, numbers).run, [*living], numbers))
        self._tells = ""

    def run(self) -> dict[str, Any]:
        """Run everything that was asked for. What did not finish is noted in the sample."""
        sample: dict[str, Any] = {"join": None, "loss": None, "unfinished": ""}
        try:
            self._create()
            sample["join"] = self._measure("joined", self._join, self._task["limit_s"])
            if self._task["loss"] and self._tells != FIXED:
                chosen = self._choose()
                limit_s = self._task["limit_s"] + self._task["unheard_s"]
                sample["loss"] = self._measure("joined again", lambda: self._lose(chosen), limit_s, chosen)
        except DidNotFinish as error:
            sample["unfinished"] = str(error)
        return sample

    def _create(self) -> None:
        """Create the nodes. The first node's process goes first: it may serve what the others connect to."""
        first, *others = self._processes.living
        for group in ([first], others):
            for child in group:
                child.send("create")
            answers = self._processes.ask(group, "created", _ANSWER_S, "the nodes' handlers were not there")
            self._tells = next((answer["tells"] for answer in answers.values()), self._tells)

    def _join(self) -> None:
        for child in self._processes.living:
            child.send("join")

    def _lose(self, chosen: NodesProcess) -> None:
        self._processes.living.remove(chosen)
        chosen.process.kill()
        for child in self._processes.living:
            child.send("again")
        chosen.reap()  # for a backend that checks whether a process still exists

    def _choose(self) -> NodesProcess:
        """One whose node is alone in it, decides nothing and serves nothing."""
        now = self._now()
        plain = {
            child: now.nodes[child.numbers[0]]
            for child in self._processes.living
            if len(child.numbers) == 1 and child.expected and is_plain(now.nodes[child.numbers[0]])
        }
        if not plain:
            raise DidNotFinish("no node with a process of its own could be lost: all of them serve or lead")
        return max(plain, key=lambda child: int(plain[child]["rank"]))

    def _measure(
        self, what: str, begin: Callable[[], None], limit_s: float, gone: NodesProcess | None = None
    ) -> dict[str, Any]:
        """Measure a phase, see ``keep``. ``gone``: the process whose node goes in this phase."""
        if gone is not None:
            gone.expected = 0
        before = self._now(begins=True)
        start = time.perf_counter()
        begin()
        joining = [child for child in self._processes.living if child.expected]
        wanted = sum(child.expected for child in joining)
        try:
            answers = self._processes.ask(joining, "joined", limit_s, f"not all of {wanted} nodes had {what}")
        except DidNotFinish as error:
            raise DidNotFinish(self._explained(error, what, wanted)) from None
        last = max(answer["last"] for answer in answers.values())
        if gone is None:
            start = min(answer["began"] for answer in answers.values())
        now = self._now()
        there = {number: node for number, node in now.nodes.items() if gone is None or number not in gone.numbers}
        if wrong := wrong_places(there):
            raise DidNotFinish(f"wrong places: {wrong}")
        return {
            "seconds": last - start,
            "per_node": per_node(there, before.nodes),
            "asked": grown(now.asked(there), before.asked(there)),
            "served": grown(now.served, before.served),
            "nodes_cpu_s": now.cpu_since(before),
            "service_cpu_s": _since(now.service_cpu_s, before.service_cpu_s),
            "apart_cpu_s": _since(now.apart_cpu_s, before.apart_cpu_s),
        }

    def _explained(self, error: DidNotFinish, what: str, wanted: int) -> str:
        """How far they got, if they still say."""
        text = str(error)
        if not text.startswith("not all"):
            return text
        joining = [child for child in self._processes.living if child.expected]
        for child in joining:
            child.send("so_far")
        with contextlib.suppress(DidNotFinish):
            answers = self._processes.ask(joining, "so_far", _SO_FAR_S, "")
            there = sum(answer["so_far"] for answer in answers.values())
            return f"{there} of {wanted} nodes had {what}{text[text.rindex(' after') :]}"
        return text

    def _now(self, *, begins: bool = False) -> NodesState:
        """Ask all nodes for their state; ``begins``: a phase begins."""
        for child in self._processes.living:
            child.send("report", expect=child.expected, begins=begins)
        answers = self._processes.ask(self._processes.living, "nodes", _ANSWER_S, "no report")
        try:
            service = served(self._task["service"])
        except (OSError, RdzvError) as error:  # it may have ended, or be too busy to answer
            raise DidNotFinish(f"its service does not say what it has counted: {error}") from None
        return NodesState(
            {node["number"]: node for answer in answers.values() for node in answer["nodes"]},
            {child: (answer["cpu_s"], answer["cpu_after_s"]) for child, answer in answers.items()},
            *service,
        )


def _since(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def is_plain(node: Mapping[str, Any]) -> bool:
    """Whether it neither serves nor decides; the node with number 0 may serve the endpoint."""
    return node["number"] > 0 and node["rank"] > 0 and not node["leads"]


def wrong_places(nodes: Mapping[int, Mapping[str, Any]]) -> str:
    """What is wrong with the places of all nodes of a round, whose numbers are the keys; empty if they are right."""
    ranks = Counter(node["rank"] for node in nodes.values())
    for number, node in nodes.items():
        if not 0 <= node["rank"] < len(nodes):
            return f"node {number} has rank {node['rank']} in a round of {len(nodes)} nodes"
        if ranks[node["rank"]] > 1:
            return f"rank {node['rank']} is that of {ranks[node['rank']]} nodes, node {number} is one of them"
        if node["world"] != len(nodes):
            return f"node {number} was told a world of {node['world']} nodes, of which there are {len(nodes)}"
    rounds = {node["round"] for node in nodes.values() if "round" in node}
    return f"the nodes are in rounds {', '.join(map(str, sorted(rounds)))}" if len(rounds) > 1 else ""


def grown(now: Mapping[str, float] | None, before: Mapping[str, float] | None) -> dict[str, float] | None:
    """What was added, by name; None if nobody counts."""
    if now is None:
        return None
    added = {name: count - (before or {}).get(name, 0) for name, count in now.items()}
    return {name: count for name, count in added.items() if count}


def per_node(
    nodes: Mapping[int, Mapping[str, Any]], before: Mapping[int, Mapping[str, Any]]
) -> dict[str, float] | None:
    """The median of each request over the plain nodes, or over all if none is plain."""
    if any(node["asked"] is None for node in nodes.values()):
        return None
    plain = [number for number, node in nodes.items() if is_plain(node)] or [*nodes]
    added = [grown(nodes[number]["asked"], before[number]["asked"]) or {} for number in plain]
    names = sorted({name for each in added for name in each} - {LEAD})
    medians = {name: float(statistics.median_low(each.get(name, 0) for each in added)) for name in names}
    return {name: count for name, count in medians.items() if count}
