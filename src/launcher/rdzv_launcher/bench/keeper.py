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
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

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
    What is unknown is not there.
    """
    raise_file_limit()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # as the launcher does
    gc.disable()
    for name in task["imports"]:  # none of it starts a thread that a fork would miss
        importlib.import_module(name)
    host = PluginHost.load()
    gc.freeze()
    run = KeptRun(task, host)
    try:
        connection.send(run.run())
    finally:
        run.kill_all()


class NodesProcess:
    """A process that holds some of the nodes: a fork of the keeper, which ends with it."""

    def __init__(self, run: Callable[[Connection], None], numbers: Sequence[int]):
        """``run`` gets the fork's end of the connection."""
        self.numbers = list(numbers)
        self.connection, theirs = _FORK.Pipe()
        ends_with_me = die_with_me()

        def forked() -> None:
            ends_with_me()
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


class NodesState(NamedTuple):
    """What is known at one moment, of the nodes and of their service since it started."""

    nodes: dict[int, dict[str, Any]]
    cpu_s: dict[NodesProcess, tuple[float, float]]
    """CPU time by process: before it said all this, and after."""
    served: Mapping[str, float] | None
    """What the service has been asked, by name, without signs of life; None if it does not say."""
    service: Mapping[str, float]
    """CPU time of serving by its name in a sample, as far as it is known."""

    def since(self, before: NodesState) -> dict[str, Any]:
        """CPU time since then, of the processes that still live and of the service, and what it was asked."""
        cpu_s = sum(now - before.cpu_s[each][1] for each, (now, _) in self.cpu_s.items())
        of_service = {name: now - before.service[name] for name, now in self.service.items() if name in before.service}
        asked = grown(self.served, before.served)
        return {"served": asked, "nodes_cpu_s": cpu_s, **of_service}


def served(service: Mapping[str, Any]) -> tuple[Mapping[str, float] | None, Mapping[str, float]]:
    """The last two of a ``NodesState``. Raises ``OSError`` and ``RdzvError`` if it should answer and does not.

    ``service`` has ``probe`` (its harness's, or empty), ``endpoint``, ``pids`` and ``apart``. ``apart``: it is in none
    of the nodes' processes; ``pids``: its own, as far as they are known here.
    """
    pids: list[int] = service["pids"]
    pids_s = sum(map(exact_cpu_seconds, pids))  # before it is asked for figures, which costs it some
    apart = {} if service["apart"] and not pids else {"apart_cpu_s": pids_s}
    if not service["probe"]:
        return None, ({"service_cpu_s": pids_s} if pids else {}) | apart
    module, _, function = service["probe"].partition(":")
    probe: Callable[[Endpoint], ServiceCounts] = getattr(importlib.import_module(module), function)
    counts = probe(parse_endpoint(service["endpoint"], None))
    cpu_s = pids_s if counts.cpu_s is None else counts.cpu_s
    return counts.requests, {"service_cpu_s": cpu_s, "apart_cpu_s": cpu_s} | apart


class KeptRun:
    """The live processes with nodes, and the phases that these go through. Used only by the main thread."""

    def __init__(self, task: Mapping[str, Any], host: PluginHost) -> None:
        self._task = task
        self._living = [NodesProcess(NodeProcess(host, task, numbers).run, numbers) for numbers in task["processes"]]
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
                sample["loss"] = self._measure("joined again", lambda: self._lose(chosen), limit_s)
        except DidNotFinish as error:
            sample["unfinished"] = str(error)
        return sample

    def kill_all(self) -> None:
        """Kill them, and wait for their ends."""
        for child in self._living:
            child.process.kill()
        for child in self._living:
            child.reap()

    def _create(self) -> None:
        """Create the nodes. The first node's process goes first: it may serve what the others connect to."""
        first, *others = self._living
        for group in ([first], others):
            for child in group:
                child.send("create")
            answers = self._ask(group, "created", _ANSWER_S, lambda: "the nodes' handlers were not there")
            self._tells = next((answer["tells"] for answer in answers.values()), self._tells)

    def _join(self) -> None:
        for child in self._living:
            child.send("join")

    def _lose(self, chosen: NodesProcess) -> float:
        """Kill it; returns when that was."""
        self._living.remove(chosen)
        lost = time.perf_counter()
        chosen.process.kill()
        for child in self._living:
            child.send("again")
        chosen.reap()  # for a backend that checks whether a process still exists
        return lost

    def _choose(self) -> NodesProcess:
        """One whose node is alone in it, decides nothing and serves nothing."""
        now = self._now()
        plain = {
            child: now.nodes[child.numbers[0]]
            for child in self._living
            if len(child.numbers) == 1 and is_plain(now.nodes[child.numbers[0]])
        }
        if not plain:
            raise DidNotFinish("no node with a process of its own could be lost: all of them serve or lead")
        return max(plain, key=lambda child: int(plain[child]["rank"]))

    def _measure(self, what: str, begin: Callable[[], float | None], limit_s: float) -> dict[str, Any]:
        """Measure a phase, see ``keep``. ``begin`` returns when the phase began, or None: with the first call."""
        before = self._now(begins=True)
        start = begin()
        answers = self._ask(self._living, "joined", limit_s, lambda: self._how_far(what)).values()
        first, last = min(answer["began"] for answer in answers), max(answer["last"] for answer in answers)
        now = self._now()
        if wrong := wrong_places(now.nodes):
            raise DidNotFinish(f"wrong places: {wrong}")
        each, asked = requests(now.nodes, before.nodes)
        seconds = last - (first if start is None else start)
        found = {"seconds": seconds, "per_node": each, "asked": asked, **now.since(before)}
        return {name: value for name, value in found.items() if value is not None}

    def _how_far(self, what: str) -> str:
        """How many nodes have got there, if they still say."""
        wanted = sum(len(child.numbers) for child in self._living)
        for child in self._living:
            child.send("so_far")
        with contextlib.suppress(DidNotFinish):
            answers = self._ask(self._living, "so_far", _SO_FAR_S, lambda: "no answer")
            return f"{sum(answer['so_far'] for answer in answers.values())} of {wanted} nodes had {what}"
        return f"not all of {wanted} nodes had {what}"

    def _now(self, *, begins: bool = False) -> NodesState:
        """Ask all nodes for their state; ``begins``: a phase begins."""
        for child in self._living:
            child.send("report", begins=begins)
        answers = self._ask(self._living, "nodes", _ANSWER_S, lambda: "no report")
        try:
            service = served(self._task["service"])
        except (OSError, RdzvError) as error:  # it may have ended, or be too busy to answer
            raise DidNotFinish(f"its service does not say what it has counted: {error}") from None
        return NodesState(
            {node["number"]: node for answer in answers.values() for node in answer["nodes"]},
            {child: (answer["cpu_s"], answer["cpu_after_s"]) for child, answer in answers.items()},
            *service,
        )

    def _ask(
        self, children: Iterable[NodesProcess], key: str, limit_s: float, late: Callable[[], str]
    ) -> dict[NodesProcess, dict[str, Any]]:
        """Wait for an answer with ``key`` from each. Raises ``DidNotFinish``, after ``limit_s`` with ``late()``."""
        deadline = time.perf_counter() + limit_s
        wanted, found = set(children), dict[NodesProcess, dict[str, Any]]()
        by_connection: dict[Any, NodesProcess] = {child.connection: child for child in self._living}
        while wanted - found.keys():
            rest = deadline - time.perf_counter()
            if rest <= 0:
                raise DidNotFinish(f"{late()} after {limit_s:g} s")
            for ready in wait(list(by_connection), rest):
                answer = self._hear(by_connection[ready])
                if key in answer:
                    found[by_connection[ready]] = answer
        return found

    def _hear(self, child: NodesProcess) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = child.connection.recv()
        except (EOFError, OSError):
            self._living.remove(child)
            raise DidNotFinish(f"a process with {len(child.numbers)} nodes {ended_by(child.reap())}") from None
        if "gave_up" in answer:
            raise DidNotFinish(f"a node gave up: {answer['gave_up']}")
        return answer


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


def requests(
    nodes: Mapping[int, Mapping[str, Any]], before: Mapping[int, Mapping[str, Any]]
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """The median of each request over the plain nodes, or over all if none is plain; and the sum over all nodes."""
    if any(node["asked"] is None for node in nodes.values()):
        return None, None
    added = {number: grown(node["asked"], before[number]["asked"]) or {} for number, node in nodes.items()}
    total: Counter[str] = Counter()
    for each in added.values():
        total.update(each)
    plain = [added[number] for number, node in nodes.items() if is_plain(node)] or [*added.values()]
    names = sorted({name for each in plain for name in each} - {LEAD})
    medians = {name: float(statistics.median_low(each.get(name, 0) for each in plain)) for name in names}
    return {name: count for name, count in medians.items() if count}, dict(total)
