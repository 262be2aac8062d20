"""One run of ``rdzv bench rendezvous``: its fork server, the processes that hold the nodes, and a thread for each node.

The fork server is a process that imports what the nodes need, once, and forks those that hold the nodes, so a node
costs milliseconds; it leads them through the phases. They obey what comes on their connections, and are killed by the
kernel when the fork server ends. Several nodes in one process share its interpreter lock, while in a cluster each has a
machine to itself. So there is no gate at which all threads wait (thousands that want the lock at one time stand
still), stacks are small, and garbage is collected only between the rounds: a collection goes through the objects of
all nodes, again and again. The interval at which threads take turns (``sys.setswitchinterval``) is left alone: from
0.5 to 100 ms makes no difference.

Two things that are touched here are not public interfaces of torch: ``_call_store`` of its ``C10dRendezvousBackend``,
through which all requests go, is wrapped to count them; and ``_settings.timeout._set_timeouts`` of its
``DynamicRendezvousHandler`` shortens the last call of rounds after the first. tests/bench/test_bench_rendezvous.py
fails if torch changes them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import multiprocessing
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from rdzv_launcher.bench.backends import REFERENCES, TORCH_STATIC
from rdzv_launcher.bench.children import die_with_me, exact_cpu_seconds
from rdzv_launcher.bench.points import DidNotFinish
from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.interfaces import Capability, Request, TorchHandler
from rdzv_plugins.kvstore.native.limits import raise_file_limit
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import create_rendezvous, prepare
from rdzv_plugins.system.processes import ended_by
from rdzv_plugins.testing.counts import LEAD, Asked, counted
from rdzv_plugins.testing.harness import ServiceCounts

_ANSWER_S = 120.0
_SO_FAR_S = 20.0
_FORK = multiprocessing.get_context("fork")
_STACK_BYTES = 256 * 1024
_POLL_S = 0.1
"""How often torch's agent asks its handler."""
_LAST_CALL = timedelta(seconds=1)
"""How long torch's dynamic rendezvous waits for more nodes after a loss. In the join it waits for all."""
VIEW, POLLED, NOT_TOLD, FIXED = "view", "polled", "not told", "fixed"
"""How a node learns that it has to join again: it waits on what its handler has been told; it asks its handler now and
then; it learns it only from its failing workers; there is no further round.
"""


class BenchNode:
    """What the benchmark asks of one simulated node. Each is used by its own thread, except where a method says so.

    Most are not told that they have to join again, and say nothing when they go.
    """

    tells = NOT_TOLD

    def __init__(self) -> None:
        self.rank = -1
        """Its rank in the last round, -1 before the first."""
        self.world = 0
        """How many nodes that round had, 0 before the first."""
        self.rendezvous: Any = None
        """By which it joins: a handler, or ours with the hooks of plug-ins around it."""
        self._handler: Any = None
        """The handler itself."""
        self._over = threading.Event()

    def join(self) -> None:
        """Join, by ``next_rendezvous``."""
        joined = self.rendezvous.next_rendezvous()
        self.rank, self.world = joined.rank, joined.world_size

    def wait_over(self) -> None:
        """Wait until this node has to join again, for ever if it was lost."""
        self._over.wait()
        self._over.clear()

    def again(self) -> None:
        """Make it join again, if it is not told: it is of torch's dynamic rendezvous. Any thread.

        Its last call is made shorter: the first round has to wait for all nodes.
        """
        self._handler._settings.timeout._set_timeouts(last_call=_LAST_CALL)
        self._over.set()

    def facts(self) -> dict[str, Any]:
        """``asked``: requests so far by name, None if unknown; ``leads``; ``round``, if that is known."""
        return {"asked": None, "leads": False}


def gave_up(error: Exception) -> dict[str, Any]:
    """Whatever a backend raises is a result. The error's type is included unless the error speaks for itself."""
    text = str(error).strip() or type(error).__name__
    return {"gave_up": text if isinstance(error, RdzvError) else f"{type(error).__name__}: {text}"}


class HostedNode(BenchNode):
    """A node of an installed backend: the plug-in host makes request, options and handler."""

    def __init__(self, host: PluginHost, request: Request) -> None:
        """May connect, and block. Raises what the backend raises."""
        super().__init__()
        entry = host.catalog.find(request.backend)
        self._asked = Asked()
        self.rendezvous = create_rendezvous(host, counted(entry, self._asked), prepare(entry, request))
        self._handler = self.rendezvous.handler
        created = self._asked.created
        self._counts = not isinstance(created, TorchHandler)
        self._coordinates = self._counts and isinstance(created, CoordinationBackend)
        if Capability.ELASTIC not in entry.backend.capabilities:
            self.tells = FIXED
        elif self._coordinates:
            self.tells = VIEW
        elif not self._counts:
            self.tells = POLLED

    def wait_over(self) -> None:
        if self.tells not in (VIEW, POLLED):
            return super().wait_over()
        cache = self._handler._cache if self.tells == VIEW else None  # of ElasticHandler
        while True:
            seen = cache.version if cache else 0
            if self._handler.num_nodes_waiting():
                return None
            if cache:  # woken by everything that can end a round, so nobody has to poll
                cache.wait(seen, threading.TIMEOUT_MAX)
            else:
                time.sleep(_POLL_S)

    def facts(self) -> dict[str, Any]:
        asked = Counter(self._asked.counts())
        asked["put"] += asked.pop("create", 0)  # for a service they are one request
        round_ = {"round": self._handler._round.number} if self._coordinates else {}
        return round_ | {"asked": dict(+asked) if self._counts else None, "leads": self._asked.leads}


class TorchNode(BenchNode):
    """torch's own, as plain torchrun makes it: dynamic on its ``C10dRendezvousBackend``, or static."""

    def __init__(self, number: int, request: Request, timeout_s: float, *, static: bool = False) -> None:
        """Connects to the store, which the node with number 0 serves; if it is static, not before it joins."""
        from torch.distributed.elastic.rendezvous import (
            RendezvousParameters,
            c10d_rendezvous_backend,
            dynamic_rendezvous,
            static_tcp_rendezvous,
        )

        super().__init__()
        limit_s = int(timeout_s)
        of_one = {"rank": number, "timeout": limit_s} if static else {"is_host": number == 0}
        parameters = RendezvousParameters(
            backend="static" if static else "c10d",
            endpoint=request.endpoint,
            run_id=request.run_id,
            min_nodes=request.min_nodes,
            max_nodes=request.max_nodes,
            local_addr=request.local_addr,  # as by --local-addr: otherwise it looks its own name up
            join_timeout=limit_s,
            last_call_timeout=limit_s,
            **of_one,
            **request.conf,
        )
        self._asked: Counter[str] | None = None
        if static:
            self.tells = FIXED
            self.rendezvous = static_tcp_rendezvous.create_rdzv_handler(parameters)
        else:
            backend, store = c10d_rendezvous_backend.create_backend(parameters)
            self._asked = self._counted(backend)
            self.rendezvous = self._handler = dynamic_rendezvous.create_handler(store, backend, parameters)

    def facts(self) -> dict[str, Any]:
        return {"asked": None if self._asked is None else dict(self._asked), "leads": False}

    def _counted(self, backend: Any) -> Counter[str]:
        """Its reads and writes, from now on, of the state that all nodes share."""
        asked: Counter[str] = Counter()
        call = backend._call_store

        def count(operation: str, *args: Any, **kwargs: Any) -> Any:
            asked[operation] += 1
            return call(operation, *args, **kwargs)

        backend._call_store = count
        return asked


class HeldNodes:
    """The nodes of this process. The main thread obeys; the nodes' threads report when the last of them has joined."""

    def __init__(
        self, connection: Connection, host: PluginHost, task: Mapping[str, Any], numbers: Sequence[int]
    ) -> None:
        """``numbers``: those of its nodes."""
        self._connection, self._host, self._task, self._numbers = connection, host, task, numbers
        self._sending = threading.Lock()
        self._nodes: dict[int, BenchNode] = {}
        self._missing = itertools.count()
        self._began = 0.0

    def run(self) -> None:
        """Obey until it is killed."""
        gc.disable()
        threading.stack_size(_STACK_BYTES)
        while True:
            command = self._connection.recv()
            answer = getattr(self, f"_{command.pop('do')}")(**command)
            if answer is not None:
                self._send(answer)

    def _create(self) -> dict[str, Any] | None:
        """Create the handlers, one after another, before any clock starts."""
        try:
            for number in self._numbers:
                self._nodes[number] = self._node(number)
        except Exception as error:
            return gave_up(error)
        return {"created": len(self._nodes), "tells": next(iter(self._nodes.values())).tells}

    def _node(self, number: int) -> BenchNode:
        task, request = self._task, cast(Request, self._task["request"])
        request = replace(request, conf=MappingProxyType(dict(request.conf)))
        if task["ranks"]:
            request = replace(request, node_rank=number)
        if task["says_who_serves"]:
            serves = task["first_serves"] and number == 0
            request = replace(request, conf={**request.conf, "is_host": str(serves).lower()})
        if task["addresses"]:
            request = replace(request, local_addr="127.0.0.1")
        if task["target"] in REFERENCES:
            return TorchNode(number, request, task["timeout_s"], static=task["target"] == TORCH_STATIC)
        return HostedNode(self._host, request)

    def _report(self, begins: bool) -> dict[str, Any]:
        """What is known about the nodes. If a phase ``begins``, all of them are to join in it."""
        cpu_s = time.process_time()
        nodes = [
            {"number": number, "rank": node.rank, "world": node.world} | node.facts()
            for number, node in self._nodes.items()
        ]
        if begins:
            self._missing = itertools.count(len(nodes) - 1, -1)  # its next is atomic, and needs no lock
            gc.collect()
        return {"nodes": nodes, "cpu_s": cpu_s, "cpu_after_s": time.process_time()}

    def _join(self) -> None:
        """Let all nodes join, one straight after another."""
        self._began = time.perf_counter()
        for number, node in self._nodes.items():
            threading.Thread(target=self._live, args=(node,), name=f"node-{number}", daemon=True).start()

    def _again(self) -> None:
        """A node was lost: those that nobody tells join again, as when their workers have failed."""
        for node in self._nodes.values():
            if node.tells == NOT_TOLD:
                node.again()

    def _live(self, node: BenchNode) -> None:
        try:
            while True:
                node.join()
                now = time.perf_counter()
                missing = next(self._missing)
                if missing == 0:
                    self._send({"joined": len(self._nodes), "began": self._began, "last": now})
                node.wait_over()
        except Exception as error:
            self._send(gave_up(error))

    def _so_far(self) -> dict[str, Any]:
        return {"so_far": len(self._nodes) - 1 - next(self._missing)}

    def _send(self, answer: Mapping[str, Any]) -> None:
        with self._sending:
            self._connection.send(answer)


# the fork server's side


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
    """A process that holds some of the nodes: a fork of the fork server, which ends with it."""

    def __init__(self, host: PluginHost, task: Mapping[str, Any], numbers: Sequence[int]):
        self.numbers = list(numbers)
        self.connection, theirs = _FORK.Pipe()
        ends_with_me = die_with_me()

        def forked() -> None:
            ends_with_me()
            HeldNodes(theirs, host, task, numbers).run()

        self.process = _FORK.Process(target=forked)
        self.process.start()
        theirs.close()

    def send(self, do: str, **what: Any) -> None:
        """Send a command, which is a method of ``HeldNodes``."""
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
        self._living = [NodesProcess(host, task, numbers) for numbers in task["processes"]]
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
