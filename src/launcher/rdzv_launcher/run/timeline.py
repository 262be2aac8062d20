"""What an agent hears and does, and what the rendezvous reports, as the events of a timeline: in a file, and as spans.

``Record`` is the form of a line, as written here and read by ``rdzv timeline``: a JSON object. ``BASE`` are the fields
that every line has; an event may have further ones. Nobody waits for it: events go into a queue that drops what does
not fit, and says how much was dropped.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert

from rdzv_launcher.run import names
from rdzv_launcher.run.agent import events, steps
from rdzv_launcher.run.agent.events import Event
from rdzv_launcher.run.agent.loop import AgentObserver
from rdzv_launcher.run.agent.steps import Step
from rdzv_launcher.run.workers.failures import describe, describe_exit
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.background_queue import BackgroundQueue
from rdzv_plugins.errors import MissingDependency, RdzvError, UsageError
from rdzv_plugins.interfaces import RoundEvent
from rdzv_plugins.plain_text import printable
from rdzv_plugins.runtime import OwnThread

logger = logging.getLogger(__name__)

VERSION = 1
"""The form's version: grows when readers of the previous one would misread it, not with new events or fields."""
SUFFIX = ".jsonl"
BASE = ("v", "event", "mono", "wall", "run", "node", "host", "agent", "round", "phase", "cause")

PHASES: Mapping[str, str] = {
    "opened": "opening",
    "joined": "joining",
    "placed": "connecting",
    "reached": "completing",
    "complete": "starting",
    "started": "working",
    "failed": "ending",
    "hung": "ending",
    "lost": "ending",
    "over": "ending",
    "stopping": "stopping",
    "stopped": "deciding",
    "asked": "deciding",
    "delayed": "delaying",
    "done": "waiting",
    "staying": "waiting",
    "leaving": "leaving",
    "left": "leaving",
    "ended": "ended",
}
"""The phase that a node is in after an event; after any other event the phase is unchanged."""
INTERRUPTING = frozenset({"failed", "hung", "lost", "asked", "over", "stopping", "leaving"})
"""The events that show that a round does not go on."""


_Seconds = Annotated[float, Meta(gt=-1e12, lt=1e12)]


class TimelineRecord(Struct, frozen=True):
    """One event. Times are in seconds."""

    event: str
    mono: _Seconds
    """The time by the monotonic clock, which all agents of one machine share."""
    wall: _Seconds
    """The time since the epoch, by the machine's clock, which may be wrong, and may be set meanwhile."""
    run: str
    node: int | None
    """The node's rank, once it has one."""
    host: str
    agent: str
    """Unique to one agent process."""
    round: int
    """The newest round that the node had heard of; 0 before the first."""
    phase: str
    """What the node does from now on."""
    cause: str = ""
    """Why, in a sentence; empty if there is nothing to say."""
    facts: Mapping[str, Any] = {}
    """What else is known about this event."""

    def line(self) -> bytes:
        """The event as a line, including the line end."""
        fields = {"v": VERSION, **{name: getattr(self, name) for name in BASE[1:]}}
        fields |= {"mono": round(self.mono, 6), "wall": round(self.wall, 6), **self.facts}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes) -> TimelineRecord:
    """Read an event from a line. Raises ``ValueError``, saying what is wrong."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(data, dict) or "v" not in data:
        raise ValueError("it is not an event of a timeline")
    if data["v"] != VERSION:
        raise ValueError(f"it is of version {str(data['v'])[:20]}, and this rdzv reads version {VERSION}")
    facts = {name: value for name, value in data.items() if name not in BASE and _is_fact(name, value)}
    try:
        return convert({name: data[name] for name in BASE if name in data} | {"facts": facts}, TimelineRecord)
    except ValidationError as error:
        raise ValueError(f"it is not an event: {error}") from None


def _is_fact(name: str, value: object) -> bool:
    """Whether it is one value, or the workers' process ids by rank: nothing else is written."""
    if name == "workers" and isinstance(value, dict):
        return all(type(pid) is int for pid in value.values())
    return value is None or isinstance(value, str | int | float)


class TimelineFile:
    """The file of a timeline. Each line is one write, so a reader sees whole lines, and a killed agent loses none.

    The first event that cannot be written is reported, and the job goes on; when there is room again, writing resumes.
    """

    def __init__(self, directory: str, run: str, host: str, agent: str) -> None:
        """Nothing is created before the first event: a file system may keep one waiting."""
        self.path = os.path.join(directory, f"{names.word(run)}-{names.word(host)}-{agent}{SUFFIX}")
        self._directory = directory
        self._fd = -1
        self._torn = False
        """The last line is incomplete."""
        self._lost = 0
        """The number of events since the last that was written."""

    def take(self, record: TimelineRecord) -> None:
        """Write the event, or report once that this is not possible."""
        try:
            if self._fd < 0:
                self._open()
            self._write(record.line())
        except OSError as error:
            self._lost += 1
            if self._lost == 1:
                logger.warning(
                    "cannot write the timeline to %s: %s; the job continues without it",
                    self.path,
                    (error.strerror or str(error)).lower(),
                )
            return
        if self._lost:
            logger.warning("writing the timeline again; %d events are missing in %s", self._lost, self.path)
            self._lost = 0

    def close(self) -> None:
        if self._lost > 1:
            logger.warning("%d events are missing in the timeline %s", self._lost, self.path)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        # its name belongs to this agent alone: an existing file is not followed, and not written to
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o644)

    def _write(self, line: bytes) -> None:
        left = memoryview(b"\n" + line if self._torn else line)
        while left:
            written = os.write(self._fd, left)
            self._torn = written < len(left)
            left = left[written:]


_EXPORTER, _PROTOCOL = "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_BY_PROTOCOL = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_INSTALL = "pip install 'rdzv-plugins[otel]', or unset it. The timeline's file is written in any case."


def spans_wanted(environment: Mapping[str, str]) -> bool:
    """Whether somebody has said where spans go, and has not switched them off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    names = _names(environment)
    return names != ["none"] and bool(names or any(environment.get(each) for each in _ENDPOINTS))


def make_provider(environment: Mapping[str, str]) -> Any:
    """Make a ``TracerProvider`` of this agent's own; the variables say what it exports to, samples and is called.

    Raises ``MissingDependency`` and ``UsageError``, which name the variable.
    """
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependency(
            f"{_asking(environment)} asks for spans, but OpenTelemetry's SDK cannot be imported ({error})",
            remedy=_INSTALL,
        ) from None
    named = "service.name" in OTELResourceDetector().detect().attributes
    resource = Resource.create({} if named else {"service.name": "rdzv-run"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # the agent does that itself
    for name in _names(environment) or ["otlp"]:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name, environment)()))
    return provider


def _names(environment: Mapping[str, str]) -> list[str]:
    return [each.strip() for each in environment.get(_EXPORTER, "").split(",") if each.strip()]


def _asking(environment: Mapping[str, str]) -> str:
    """The variable that asks for spans."""
    return next(each for each in (_EXPORTER, *_ENDPOINTS) if environment.get(each))


def _exporter(name: str, environment: Mapping[str, str]) -> Any:
    """The class of an exporter, by its name in the variable."""
    entry = name
    if name == "otlp":
        protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(_PROTOCOL)
        entry = _BY_PROTOCOL.get((protocol or "http/protobuf").strip(), "")
        if not entry:
            raise UsageError(
                f"{_PROTOCOL}={protocol} is not a known protocol", remedy=f"One of {', '.join(_BY_PROTOCOL)}."
            )
    found = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=entry)
    if not found:
        raise MissingDependency(
            f"{_asking(environment)} asks for spans, but their exporter {entry!r} is not installed", remedy=_INSTALL
        )
    return next(iter(found)).load()


_BAD = frozenset({"failed", "hung", "lost"})
_LAST_S = 1.0
_PARENT = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}


class Spans:
    """A timeline as spans of OpenTelemetry: one for the agent, and below it one for each phase.

    Where they go is said by OpenTelemetry's variables (OTEL_*), which its SDK reads. Without them there are none.
    OpenTelemetry is imported with the first event, on the thread that delivers it.

    A span's times start from the wall clock at the first event, and advance by the monotonic clock. If the variable
    TRACEPARENT names a span (W3C Trace Context), that is the parent of the agent's span.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        make: Callable[[Mapping[str, str]], Any] = make_provider,
    ) -> None:
        """``make`` makes the ``TracerProvider``, or raises an ``RdzvError``, which is reported once."""
        self._environment, self._make = environment, make
        self._provider: Any = None
        self._tracer: Any = None
        self._agent: Any = None
        self._phase: Any = None
        self._name = ""
        self._base = 0.0
        self._given_up = False
        self._last = 0

    def take(self, record: TimelineRecord) -> None:
        """Take one event: of a new phase, or within one."""
        if self._given_up:
            return
        if self._provider is None:
            self._begin(record)
        if self._agent is None:
            return
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        at = self._last = int((self._base + record.mono) * 1e9)
        if record.phase != self._name:
            self._end_phase(at)
            self._name = record.phase
            if record.phase != "ended":
                parent, about = set_span_in_context(self._agent), _attributes(record)
                self._phase = self._tracer.start_span(record.phase, parent, attributes=about, start_time=at)
        span = self._agent if self._phase is None else self._phase
        facts = {"cause": record.cause, **record.facts} if record.cause else record.facts
        span.add_event(record.event, _flat(facts), at)
        if record.event in _BAD:
            span.set_status(Status(StatusCode.ERROR, record.cause))

    def close(self) -> None:
        """End all spans, and export what is still pending, for as long as an agent's end may wait for a collector."""
        if self._agent is not None:
            self._end_phase(self._last)
            self._agent.end(self._last)
            self._agent = None
            ending = OwnThread(target=self._provider.shutdown, name="rdzv-spans")
            ending.start()
            ending.join(_LAST_S)
            if ending.is_alive():
                logger.warning(
                    "the last spans of the timeline may be lost: they were not accepted within %g s", _LAST_S
                )

    def _begin(self, record: TimelineRecord) -> None:
        try:
            self._provider = self._make(self._environment)
        except Exception as error:
            self._given_up = True
            remedy = f" {error.remedy}" if isinstance(error, RdzvError) and error.remedy else ""
            logger.warning("exporting no spans of the timeline: %s.%s", str(error).rstrip("."), remedy)
            return
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._base = record.wall - record.mono
        self._tracer = self._provider.get_tracer("rdzv-run")
        carrier = {name: self._environment[each] for name, each in _PARENT.items() if each in self._environment}
        context = TraceContextTextMapPropagator().extract(carrier)
        start = int(record.wall * 1e9)
        self._agent = self._tracer.start_span("agent", context, attributes=_attributes(record), start_time=start)

    def _end_phase(self, at: int) -> None:
        if self._phase is not None:
            self._phase.end(at)
            self._phase = None


def _attributes(record: TimelineRecord) -> dict[str, Any]:
    named = {"run": record.run, "host": record.host, "agent": record.agent, "node": record.node, "round": record.round}
    return {f"rdzv.{name}": value for name, value in named.items() if value is not None}


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Turn facts into attributes: numbers and texts."""
    return {
        f"rdzv.{name}": value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in facts.items()
        if value is not None
    }


Sink = TimelineFile | Spans
_MOST = 10_000
"""The most events that are kept for sinks that do not take them: a round has about ten."""
_CLOSE_S = 2.0
"""How long the end of an agent waits for what is not written yet."""


class TimelineRecorder(AgentObserver):
    """Writes the timeline of an agent. One per agent. Thread-safe. It never keeps its caller waiting."""

    def __init__(
        self, run: str, sinks: Sequence[Sink], host: str, agent: str, *, backend: str = "", most: int = _MOST
    ) -> None:
        """``sinks`` take the events in order, on a separate thread, where they may block; what they raise is ignored.

        At most ``most`` events are kept for them. ``host`` and ``agent`` are the names used in the timeline.
        """
        self._run, self._sinks, self._host, self._agent = run, sinks, host, agent
        self._lock = threading.Lock()
        self._node: int | None = None
        self._round = self._engines = 0
        """The newest round, and the newest round that the rendezvous has reported complete."""
        self._phase = ""
        self._over = 0
        self._generation = self._written = 0
        """The generation of workers that was started last, and the newest one that has written something."""
        self._running = False
        self._queue: BackgroundQueue[TimelineRecord] = BackgroundQueue(
            "rdzv-timeline", self._deliver, _say_dropped, limit=most
        )
        self._note("opened", pid=os.getpid(), clock=clock_id(), backend=backend)

    @staticmethod
    def open(directory: str, run: str, backend: str) -> TimelineRecorder:
        """Open a recorder, as ``--timeline`` asks for it."""
        host, agent = socket.gethostname(), os.urandom(5).hex()  # a name that no other process has
        sinks: list[Sink] = [TimelineFile(directory, run, host, agent)]
        if spans_wanted(os.environ):
            sinks.append(Spans())
        return TimelineRecorder(run, sinks, host, agent, backend=backend)

    def heard(self, event: Event, group: WorkerGroup | None) -> None:
        match event:
            case events.Joined(node_rank) if group is not None:
                self._joined(node_rank, group.group_world_size)
            case events.StartFailed(error) | events.Failed(error):
                self._note("error", cause=_sentence(error))
            case events.GroupEnded(generation) if generation == self._generation and self._running:
                self._running = False
                self._note("stopped")
            case events.Fenced():
                self._note("lost", cause="this node's session has ended: its workers are killed")
            case events.Stuck(local_rank, pid, seconds):
                who = _worker(group, local_rank)
                self._note("failed", cause=f"{who} (pid {pid}) has been in uninterruptible sleep for {seconds:.0f} s")
            case events.NodesWait() | events.MustRunAgain():
                if self._over < self._round:
                    self._note_over(self._round, "nodes have come, or another node restarts its workers")
            case events.PeersAnswered(lost):
                self._note("answered", lost=lost)
            case events.RestartAllowed(delay) if delay > 0:
                self._note("delayed", seconds=delay)
            case events.SignalArrived(number):
                self._note("signal", cause=f"the agent got {number.name}")

    def takes(self, step: Step, group: WorkerGroup | None) -> None:
        match step:
            case steps.Join():
                self._note("joined")
            case steps.ReportFailure(local_rank, exit_code):
                cause = f"{_worker(group, local_rank)} ended with {describe_exit(exit_code)}"
                self._note("failed", cause=cause, exit_code=exit_code)
            case steps.ReportHang(failure):
                self._note("hung", cause=describe(failure))
            case steps.Stop() | steps.Kill() if self._running and self._phase != "stopping":
                self._note("stopping")
            case steps.AskPeers():
                self._note("asked")
            case steps.WaitAtBarrier():
                self._note("done")
            case steps.Stay():
                self._note("staying")
            case steps.GiveNotice(reason) | steps.NoteLeaving(reason):
                self._note("notice" if isinstance(step, steps.GiveNotice) else "leaving", cause=reason)
            case steps.Leave(outcome):
                self._note("left", cause=outcome.reason, outcome=outcome.end)
            case steps.End(exit_code):
                self._note("ended", exit_code=exit_code)

    def started(self, group: WorkerGroup) -> None:
        self._generation, self._running = group.generation, True
        ranks = {each.global_rank: group.pids.get(each.local_rank, 0) for each in group.workers}
        self._note("started", workers=ranks, restarts=group.restarts_used)

    def wrote(self, local_rank: int, group: WorkerGroup | None) -> None:
        """A worker has written its first line. Only the first call of each generation counts."""
        if group is not None and self._written < group.generation:
            self._written = group.generation
            self._note("line", cause=f"{_worker(group, local_rank)} wrote")

    def saw(self, event: RoundEvent) -> None:
        if event.kind == "over":
            if event.cause == "lost":
                self._note("lost", cause=event.reason, over=event.round)
            self._note_over(event.round, event.reason, event.cause)
            return
        if event.kind == "complete":
            self._engines = event.round
        self._round, self._node = event.round, event.rank if event.rank is not None else self._node
        self._note(event.kind, numbered=True, world=event.world)

    def close(self) -> None:
        """Wait a moment for what is not written yet; after that, the end of the process no longer waits for it."""
        self._queue.flush(_CLOSE_S)
        atexit.unregister(self._queue.flush)

    def _joined(self, node_rank: int, world: int) -> None:
        self._node = node_rank
        if self._engines == 0:  # the rendezvous reports nothing: rounds are counted here
            self._round += 1
            self._note("complete", numbered=False, world=world)

    def _note_over(self, round_: int, reason: str, why: str = "") -> None:
        self._over = round_
        self._note("over", cause=reason, over=round_, **({"why": why} if why else {}))

    def _note(self, event: str, *, cause: str = "", **facts: Any) -> None:
        with self._lock:
            if self._phase == "ended":  # what other threads still hear no longer belongs to this agent
                return
            mono, wall = time.monotonic(), time.time()
            phase = PHASES.get(event, self._phase)
            if phase == "ending" and self._phase != "working":  # the event is a sign only for workers that run
                phase = self._phase
            self._phase = phase
            who = self._run, self._node, self._host, self._agent
            self._queue.put(TimelineRecord(event, mono, wall, *who, self._round, phase, printable(cause), facts))

    def _deliver(self, record: TimelineRecord) -> None:
        for sink in self._sinks:
            _try(lambda sink=sink: sink.take(record))  # type: ignore[misc]
            if record.event == "ended":
                _try(sink.close)


def clock_id() -> str:
    """Identifies a monotonic clock, which processes with the same id share: a machine's start, and a time namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:  # not Linux, or an old one
        return f"{socket.gethostname()} {os.getpid()}"


def _try(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        logger.debug("error in a sink of the timeline: %r", error)


def _say_dropped(count: int) -> None:
    logger.warning("%d events of the timeline were dropped: they could not be written in time", count)


def _worker(group: WorkerGroup | None, local_rank: int) -> str:
    if group is None:
        return f"local rank {local_rank}"
    rank = next((each.global_rank for each in group.workers if each.local_rank == local_rank), -1)
    return f"rank {rank} (node {group.group_rank}, local rank {local_rank}, pid {group.pids.get(local_rank, 0)})"


def _sentence(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
