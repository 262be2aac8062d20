"""What is watched at an endpoint: one job, or those that meet at an ``rdzv serve``, which come and go.

A job's keys are pushed, its nodes are asked what their workers use, and its store who waits. The keys cost nothing
while nothing happens. The questions cost the service some messages for each node, so the more nodes there are, the
rarer they come: this takes a small share of one of the service's cores, whatever the size of the job.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from rdzv_launcher.run.node_stats import NodeStats, WorkerStats
from rdzv_launcher.run.workers.failures import describe
from rdzv_launcher.tools.job import Meeting, StoreAt
from rdzv_launcher.tools.status import round_data, waited_lines
from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import NODES, Assignment, Member, readable
from rdzv_plugins.elastic.observer import JobObserver
from rdzv_plugins.elastic.rpc import ask
from rdzv_plugins.errors import ConnectionLost, EndpointUnreachable, RdzvError
from rdzv_plugins.interfaces import Request, RunStatus
from rdzv_plugins.plain_text import many, printable
from rdzv_plugins.questions import VITALS, RpcResponse, checked
from rdzv_plugins.rounds.ends import parse_failure, parse_outcome
from rdzv_plugins.runtime import OwnThread


def parse_node_stats(answer: Any) -> NodeStats:
    """Read a node's answer. Raises ``ValueError`` for anything else."""
    said = checked(answer, NodeStats)
    workers = tuple(replace(each, state=printable(each.state, 1)) for each in said.workers)
    return replace(said, stage=printable(said.stage, 20), workers=workers)


def cpu_percent(now: NodeStats, before: NodeStats | None, worker: WorkerStats) -> float | None:
    """Per cent of one processor, between two answers; None if there is no earlier one of this worker."""
    if before is None or not now.at > before.at:
        return None
    last = next((each for each in before.workers if (each.rank, each.pid) == (worker.rank, worker.pid)), None)
    return None if last is None else max(0.0, 100 * (worker.cpu_s - last.cpu_s) / (now.at - before.at))


class NodeSeen(Struct, frozen=True):
    """A node, as the others are told about it."""

    node_id: str
    rank: int | None
    """Its rank in the newest round; None: it has no place there."""
    host: str
    pid: int
    state: str
    """One of ``top.WELL``, or ``joins``, ``waits``, ``leaves``, ``cut off``, ``left out``, ``refused``, ``gone``."""
    round: int
    """The newest round in which it has a place; 0: none."""
    domain: str = ""
    """What it shares with the nodes near it; empty if nothing is known about that."""


def nodes_of(status: RunStatus, told: Iterable[KeyValue], members: Iterable[KeyValue]) -> list[NodeSeen]:
    """The nodes by rank, those without one at the end. ``told`` and ``members`` are the keys of that name."""
    # by key: a notice of having no place, such as that of a node that is left out, does not repeat whose it is
    places = {kv.key.removeprefix(NODES): each for kv in told for each in readable(Assignment, (kv,))}
    there = {each.node_id: each for each in readable(Member, members)}
    found = []
    for node_id in places.keys() | there.keys():
        place, member = places.get(node_id), there.get(node_id)
        if place is not None and place.is_place and place.round < status.number:
            place = None  # of a round that is long over
        has = place if place is not None and place.is_place else None
        who: Member | Assignment | None = member or has
        if who is None:
            continue
        rank, number = (None, 0) if has is None else (has.rank, has.round)
        found.append(NodeSeen(node_id, rank, who.host, who.pid, _state(status, place, member), number, who.domain))
    return sorted(found, key=lambda each: (each.rank is None, each.rank or 0, each.host, each.pid))


def _state(status: RunStatus, place: Assignment | None, member: Member | None) -> str:
    if member is None:
        return "gone"
    if member.leaving:
        return "leaves"
    if place is not None and place.refused:
        return "refused"
    if place is not None and place.left_out:
        return "left out"
    if place is None or place.spare:
        return "spare" if status.state == "complete" else "waits"
    if member.last_round >= place.round:
        return "waits"
    if member.cut_off_round == place.round:
        return "cut off"
    if member.finished_round == place.round:
        return "done"
    return "works" if status.state == "complete" and status.number == place.round else "joins"


def event_text(event: Event, before: KeyValue | None) -> str:
    """The sentence; empty for a change that is of no interest, or cannot be read."""
    try:
        return printable(_sentence(event.key, event.value, None if before is None else before.value))
    except ValueError:  # from another version, or from a stranger
        return ""


def last_end(failures: list[KeyValue]) -> str:
    """The newest failure that the nodes have recorded; empty if there was none."""
    rounds = {int(number): kv for kv in failures if keys.is_round(number := kv.key.removeprefix(keys.FAILURES))}
    try:
        return f"round {max(rounds)}: {describe(parse_failure(rounds[max(rounds)].value))}" if rounds else ""
    except ValueError:
        return ""


def _sentence(key: str, value: bytes | None, before: bytes | None) -> str:
    if key.startswith(keys.MEMBERS):
        if value is None:
            gone = keys.decode(keys.Member, before or b"")
            return f"{gone.name} left: {gone.reason or gone.leaving}" if gone.leaving else f"{gone.name} is gone"
        member = keys.decode(keys.Member, value)
        if before is None:
            return f"{member.name} joined the job"
        if member.leaving and not keys.decode(keys.Member, before).leaving:
            return f"{member.name} is leaving: {member.reason}"
        return ""
    if value is None:
        return "no leader" if key == keys.LEADER else ""
    if key == keys.ROUND:
        found = keys.decode(keys.Round, value)
        said = found.reason or many(found.world, "node")
        return f"round {found.number} is {found.state}: {said}" if found.state != "none" else ""
    if key == keys.NOTICE:
        return keys.decode(keys.OperatorMessage, value).text
    if key == keys.END:
        end = parse_outcome(value)
        return f"the job ended: {end.reason or end.end}"
    if key.startswith(keys.FAILURES):
        return describe(parse_failure(value))
    if key.startswith(keys.RESTARTS):
        return f"round {key.removeprefix(keys.RESTARTS)}: restarting workers: {value.decode(errors='replace')}"
    return ""


_LEAST_S, _PER_NODE_S = 2.0, 0.05
"""The time between two questions: at least this much, and this much for each node."""
_AGAIN_S = 1.0
_SILENT_S = 5.0
"""A service that has said nothing for this long has a problem: it gives a sign of life every few seconds."""
_TWICE_S = 0.5
_NOBODY = "the job has no nodes"
_EVENTS = 500


class JobWatch:
    """One job. Thread-safe; ``look`` is for one thread at a time, which after ``start`` is its own."""

    def __init__(self, run: str, meeting: Meeting, found: StoreAt | CoordinationBackend, timeout: float) -> None:
        """``found``: the native store at which the run meets, or its service, for the first look.

        ``timeout`` is in seconds, for each step.
        """
        self.run = run
        self._meeting, self._timeout = meeting, timeout
        self._found: StoreAt | CoordinationBackend | None = found
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._observer: JobObserver | None = None
        self._problem, self._problem_since = "", 0.0
        self._last: dict[str, Any] = {"round": None, "last_end": "", "nodes": [], "waits": [], "waits_problem": ""}
        self._nodes: tuple[tuple[JobObserver, int], RunStatus, list[NodeSeen]] | None = None
        """The keys that were read, and what was read from them."""
        self._heard: dict[str | tuple[str, int], float] = {}
        """When each node last showed a sign of life, by its id, and by its host and pid."""
        self._answers: dict[tuple[str, int], RpcResponse] = {}
        self._vitals: dict[tuple[str, int], tuple[NodeStats, NodeStats | None]] = {}
        self._store: dict[str, Any] | None = None
        self._events_ever = 0
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)
        self._over = ""
        self._thread = OwnThread(target=self._run, name="rdzv-top", on_error=lambda error: self._lose(repr(error)))

    def start(self) -> None:
        """Watch from now on, whatever happens to the service."""
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self._timeout)
        self._let_go()

    def look_once(self) -> dict[str, Any]:
        """The job as it is now; asks twice, for the use of processors. Raises ``RdzvError`` or ``TimeoutError``."""
        try:
            observer = self._open()
            self._ask(observer)
            time.sleep(_TWICE_S)
            self._ask(observer)
            self._look_at_store(observer)
            return self.data()
        finally:
            self._let_go()

    def data(self) -> dict[str, Any]:
        """All that is known now, in its JSON form; the last known data while the job is out of sight."""
        now, observer, unreadable = time.monotonic(), self._observer, ""
        try:
            read = None if observer is None else self._read(observer)
        except ValueError as error:
            read, unreadable = None, f"unreadable keys: {error}"
        with self._lock:
            problem, since = self._problem or unreadable, self._problem_since if self._problem else now
            if read is not None and observer is not None and not problem:
                self._last = self._seen(observer, *read, now)
                if observer.silent_s > _SILENT_S:
                    problem, since = "the service does not answer", now - observer.silent_s
            events = [{"at": at, "text": text} for at, text in self._events]
            told = {"events": events, "events_ever": self._events_ever}
        if problem:
            problem = f"nothing new for {now - since:.0f} s: {problem}"
        return {"run": self.run, "problem": problem} | self._last | told

    def _run(self) -> None:
        observer = None
        while not self._closed:
            try:
                if observer is None or self._problem:
                    self._let_go()
                    observer = self._open()
                self._ask(observer)
                self._look_at_store(observer)
            except (RdzvError, TimeoutError, ValueError) as error:
                self._lose(str(error))
            self._wake.wait(_AGAIN_S if self._problem else max(_LEAST_S, _PER_NODE_S * len(self._answers)))
            self._wake.clear()

    def _open(self) -> JobObserver:
        """Bring the job into sight, if it has nodes. Raises ``RdzvError`` or ``TimeoutError``."""
        observer = JobObserver(self._service(), self._happened, self._lost, self._timeout)
        if not observer.held(keys.MEMBERS):  # it would keep the keys of a job that is over
            observer.close()
            raise ConnectionLost(_NOBODY)
        with self._lock:
            self._observer, self._problem = observer, ""
        return observer

    def _service(self) -> CoordinationBackend:
        """The service as one more node sees it. Raises ``RdzvError``."""
        if isinstance(self._found, StoreAt):
            if self.run not in self._found.runs(self._timeout):
                raise ConnectionLost(_NOBODY)
            return self._found.service(self.run, "top")
        first, self._found = self._found, None  # an observer closes what it was given
        if first is not None:
            return first
        again = self._meeting.services()
        if isinstance(again, StoreAt):
            raise EndpointUnreachable(f"{again.endpoint} now has another service")
        return again[0]

    def _let_go(self) -> None:
        with self._lock:
            observer, self._observer = self._observer, None
        if observer is not None:
            observer.close()

    def _lose(self, why: str) -> None:
        """The job is out of sight from now on, until it is opened again. Any thread; waits for nothing."""
        with self._lock:
            if not self._problem:
                self._problem, self._problem_since = why, time.monotonic()

    def _lost(self, error: ConnectionLost) -> None:
        self._lose(str(error))
        self._wake.set()

    def _happened(self, event: Event, before: KeyValue | None) -> None:
        text = event_text(event, before)
        with self._lock:
            if text:
                self._events.append((time.time(), text))
                self._events_ever += 1
            if event.key == keys.ROUND and " is over: " in text:
                self._over = text
            if event.key.startswith(keys.MEMBERS):
                self._heard[event.key.removeprefix(keys.MEMBERS)] = time.monotonic()
        observer = self._observer
        if event.value is None and observer is not None and not observer.held(keys.MEMBERS):
            self._lost(ConnectionLost(_NOBODY))

    def _ask(self, observer: JobObserver) -> None:
        answers = ask(observer.session, VITALS, {}, self._timeout)
        with self._lock:
            old, self._vitals, self._answers = self._vitals, {}, {}
            for each in answers:
                who = each.host, each.pid
                self._answers[who] = each
                if not each.is_silent:
                    self._heard[who] = time.monotonic()
                if not each.problem:
                    try:
                        vitals = parse_node_stats(each.answer)
                    except ValueError as error:
                        self._answers[who] = RpcResponse(each.node_rank, each.host, each.pid, problem=str(error))
                        continue
                    self._vitals[who] = vitals, old[who][0] if who in old else None

    def _look_at_store(self, observer: JobObserver) -> None:
        store = round_data(observer.status(), self._timeout, self._meeting.request)["store"]
        with self._lock:
            self._store = store

    def _read(self, observer: JobObserver) -> tuple[RunStatus, list[NodeSeen]]:
        """What its keys say, without the lock: for thousands of nodes it takes a second, unless nothing has changed."""
        version, held = observer.version, self._nodes
        if held is None or held[0] != (observer, version):
            status = observer.status()
            found = nodes_of(status, observer.held(keys.NODES), observer.held(keys.MEMBERS))
            held = self._nodes = (observer, version), status, found
        return held[1], held[2]

    def _seen(self, observer: JobObserver, status: RunStatus, nodes: list[NodeSeen], now: float) -> dict[str, Any]:
        shown = ("number", "state", "reason", "progress", "members", "leader")
        return {
            "round": {name: getattr(status, name) for name in shown},
            "last_end": self._over or last_end(observer.held(keys.FAILURES)),
            "nodes": [self._node(each, now) for each in nodes],
            "waits": waits_of(self._store) if status.state == "complete" else [],
            "waits_problem": (self._store or {}).get("problem", ""),
        }

    def _node(self, node: NodeSeen, now: float) -> dict[str, Any]:
        answer = self._answers.get((node.host, node.pid))
        vitals, before = self._vitals.get((node.host, node.pid), (None, None))
        heard = max(self._heard.get(node.node_id, 0.0), self._heard.get((node.host, node.pid), 0.0))
        silent = answer is not None and answer.is_silent
        seen = asdict(node)
        del seen["node_id"]
        return seen | {
            "state": "silent" if silent and node.state != "gone" else node.state,
            "heard_s": round(now - heard, 1) if heard else None,
            "restarts": None if vitals is None else vitals.restarts,
            "stage": "" if vitals is None else vitals.stage,
            "problem": "" if answer is None or node.state == "gone" else answer.problem,
            "workers": []
            if vitals is None
            else [asdict(each) | {"cpu_percent": cpu_percent(vitals, before, each)} for each in vitals.workers],
        }


def waits_of(store: dict[str, Any] | None) -> list[str]:
    """Lines about who waits for which key; empty if nobody does, or the store cannot be asked."""
    try:
        keyspaces = (store or {}).get("statistics") or {}
        lines = [line for keyspace in keyspaces.get("keyspaces", ()) for line in waited_lines(keyspace)]
    except (KeyError, TypeError, AttributeError):
        return []
    return [line.strip() for line in lines if line.startswith("    ")]


OTHERWISE = "Use `rdzv status`, which needs no answers from nodes."
_MOST_JOBS, _AT_ONCE = 64, 16
"""How many jobs are watched at a time: each is a session with some watches."""
_EVERY_S = 2.0
"""Seconds between two requests for the list of jobs: one request each."""


class EndpointWatch:
    """Watches all jobs at an endpoint. Thread-safe. Call ``start`` or ``look_once``, then ``close``."""

    def __init__(self, request: Request, timeout: float) -> None:
        """Reaches the endpoint. Raises ``RdzvError``, also if its nodes cannot be watched, or if there is no job."""
        self._meeting = Meeting(request, timeout, who="top", otherwise=OTHERWISE)
        self._request, self._timeout = request, timeout
        self._lock = threading.Lock()
        self._jobs: dict[str, JobWatch] = {}
        self._problem = ""
        self._left_out = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        found = self._meeting.services()
        if isinstance(found, StoreAt):
            names = self._named(found.runs(timeout))
            if not names and request.is_named:
                said = f"no run {request.run_id!r} at {found.endpoint}"
                raise EndpointUnreachable(said, remedy="Check --rdzv-id.")
            self._take(found, names)
            self._thread = OwnThread(self._run, "rdzv-top-jobs", (found,), on_error=self._failed)
        else:
            service, run = found
            self._jobs[run] = JobWatch(run, self._meeting, service, timeout)

    def start(self) -> None:
        """Watch from now on, whatever happens to the endpoint."""
        for job in self._jobs.values():
            job.start()
        if self._thread is not None:
            self._thread.start()

    def look_once(self) -> dict[str, Any]:
        """The same as ``data``, after asking each job. Raises ``RdzvError`` or ``TimeoutError`` if there is no job."""
        if not self._jobs:
            raise EndpointUnreachable(
                f"no job found at {self._request.endpoint}",
                remedy="Pass the job's --rdzv-endpoint, not its MASTER_ADDR.",
            )
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = [*threads.map(partial(self._once, alone=len(self._jobs) == 1), self._jobs.values())]
        return {"endpoint": self._request.endpoint, "problem": "", "jobs": found, "left_out": self._left_out}

    def data(self) -> dict[str, Any]:
        """All that is known now, in its JSON form."""
        with self._lock:
            jobs, problem, left_out = list(self._jobs.values()), self._problem, self._left_out
        found = [job.data() for job in jobs]
        return {"endpoint": self._request.endpoint, "problem": problem, "jobs": found, "left_out": left_out}

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(self._timeout)
        for job in self._jobs.values():
            job.close()

    @staticmethod
    def _once(job: JobWatch, *, alone: bool) -> dict[str, Any]:
        try:
            return job.look_once()
        except (RdzvError, TimeoutError) as error:
            if alone:
                raise
            return job.data() | {"problem": str(error)}

    def _run(self, store: StoreAt) -> None:
        """Keep track of which jobs there are."""
        while not self._ending.wait(_EVERY_S):
            try:
                gone, new = self._take(store, self._named(store.runs(self._timeout)))
            except RdzvError as error:
                self._failed(error)
                continue
            for job in new:
                job.start()
            for job in gone:
                job.close()

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._problem = str(error)

    def _named(self, runs: list[str]) -> list[str]:
        return [run for run in runs if run == self._request.run_id] if self._request.is_named else sorted(runs)

    def _take(self, store: StoreAt, names: list[str]) -> tuple[list[JobWatch], list[JobWatch]]:
        """Returns the jobs that have gone, and the new ones. A job that alone is meant stays, as it may come back."""
        new = []
        with self._lock:
            self._problem = ""
            stays = set(names) | ({self._request.run_id} if self._request.is_named else set())
            gone = [
                self._jobs.pop(run) for run in list(self._jobs) if run not in stays and (names or len(self._jobs) > 1)
            ]
            for run in names:
                if run not in self._jobs and len(self._jobs) < _MOST_JOBS:
                    self._jobs[run] = JobWatch(run, self._meeting, store, self._timeout)
                    new.append(self._jobs[run])
            self._left_out = len([run for run in names if run not in self._jobs])
        return gone, new
