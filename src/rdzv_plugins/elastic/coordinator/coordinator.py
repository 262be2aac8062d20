"""The node that decides: it watches the members, runs the state machine, and publishes the results.

Every write is guarded by the leader's own key: a leader that was stopped and has been replaced in the meantime changes
nothing. Its successor starts from the keys alone.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rdzv_plugins.coordination import Event, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.coordinator.gates import ProvedGone
from rdzv_plugins.elastic.coordinator.member_monitor import LivenessRound, MemberMonitor
from rdzv_plugins.elastic.coordinator.placement import Order, Rules
from rdzv_plugins.elastic.coordinator.state_machine import InitialListDone, RoundStateMachine, RoundUpdate
from rdzv_plugins.elastic.keys import (
    Assignment,
    Finishing,
    Heartbeat,
    Member,
    OperatorMessage,
    R,
    Round,
    encode,
    readable,
)
from rdzv_plugins.elastic.retry import Outage
from rdzv_plugins.errors import ConnectionLost, RdzvError
from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.rounds.ends import to_json
from rdzv_plugins.runtime import Empty, Runtime

if TYPE_CHECKING:
    from queue import SimpleQueue

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STOP_S = 5.0
_PROGRESS_S = 1.0
_NODES_PER_PROGRESS_S = 500  # progress goes to every node: the more there are, the less often


class Coordinator:
    """A thread that leads until ``stop``, or until the session or the leadership is lost.

    If one turn of its loop takes longer than the session's time to live, it gives up the leadership, and others go on.
    """

    def __init__(
        self,
        session: Session,
        key: KeyValue,
        rules: Rules,
        order: Order,
        neighbours: Neighbours,
        me: Member,
        outage: Outage,
        runtime: Runtime,
        *,
        proved: Iterable[str],
        first_here: bool,
        on_free: Callable[[], None],
        on_waits: Callable[[], None],
    ) -> None:
        """``me``: this node. ``proved``: nodes whose processes were proved gone, first of all the one that led before.

        They were members at this endpoint then, as this node was.
        ``first_here``: see ``Quorum``. ``on_free`` is called, on the thread, when a leader that was ``stuck`` no longer
        is. ``on_waits``: as for ``PeerMonitor``.
        """
        self._session, self._key = session, key
        self._rules, self._order, self._neighbours = rules, order, neighbours
        self._outage, self._runtime = outage, runtime
        self._inbox: SimpleQueue[Sequence[Event | ProvedGone] | None] = self._runtime.SimpleQueue()
        self._seen = MemberMonitor(session, me, self.proved, on_waits, runtime, until_proved=rules.majority)
        self._proved, self._first_here = tuple(proved), first_here
        self.led: tuple[str, int] | None = None
        """Several endpoints: as in ``Member``. Final once the session has ended."""
        self._progress = ""
        self._progress_at: float | None = None
        self._on_free = on_free
        self._watchdog = CoordinatorWatchdog(session.ttl, self._step_down, runtime)
        self._thread = self._runtime.Thread(target=self._run, name="rdzv-leader")
        self._thread.start()

    def leads(self, session: Session, key: KeyValue) -> bool:
        """Whether this node leads by that key of that session: another server may assign the same revision again."""
        return self._session is session and self._key == key

    @property
    def is_active(self) -> bool:
        """Whether it still decides: it was neither replaced nor stopped, nor found stuck."""
        return self._thread.is_alive() and not self._watchdog.stuck

    @property
    def stuck(self) -> bool:
        """Whether it was found stuck and still is: it no longer leads, and must not lead again before it goes on."""
        return self._watchdog.stuck and self._thread.is_alive()

    def proved(self, node: str) -> None:
        """The process of a node is proved gone. Callable from any thread."""
        self._inbox.put([ProvedGone(node)])

    def stop(self) -> None:
        """Stop leading. The key goes with the session. Waits a few seconds, as the thread may be stuck."""
        self._inbox.put(None)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            self._lead()
        except (ConnectionLost, _Replaced) as error:
            logger.debug("no longer the rendezvous leader: %r", error)
        except RdzvError as error:  # a plug-in's hook. The next leader would meet it, too: better to end with a reason
            self._end_job(str(error))
        except Exception as error:
            logger.exception("the rendezvous leader on this node failed")
            self._end_job(f"{type(error).__name__}: {error}")
        finally:
            self._seen.close()
            self._watchdog.end()
            if self._watchdog.stuck:
                # it lives for a moment more: the callee allows for that
                self._runtime.Thread(target=self._tell_free, name="rdzv-leader-free").start()

    def _tell_free(self) -> None:
        self._thread.join()
        self._on_free()

    def _step_down(self, where: str) -> None:
        """Give up leading. Called on the watchdog's thread; guarded, as the key may be another leader's by then."""
        logger.error(
            "the rendezvous leader on this node made no progress for %g s: %s; handing over to another node",
            self._session.ttl,
            where,
        )
        try:
            self._ask(lambda timeout: self._session.delete([keys.LEADER], guard=self._key, timeout=timeout))
        except ConnectionLost as error:
            logger.debug("the leader's key ends with the session: %s", error)

    def _end_job(self, reason: str) -> None:
        if self._watchdog.stuck:
            logger.warning("the rendezvous leader on this node was stuck, and another node has taken over: %s", reason)
            return
        outcome = Outcome("failed", f"the rendezvous leader failed: {reason}")
        try:
            self._ask(lambda timeout: self._session.create(keys.END, to_json(outcome).encode(), timeout=timeout))
        except RdzvError as error:
            logger.debug("could not tell the other nodes: %s", error)

    def _lead(self) -> None:
        held: dict[str, KeyValue] = {}

        def begin(found: Sequence[KeyValue]) -> None:
            held.clear()
            held.update((kv.key, kv) for kv in found)

        watch = keys.list_and_watch(self._session, "", begin, self._inbox.put, self._ask, watched=keys.MEMBERS)
        try:
            with self._watchdog.turn():
                machine, liveness = self._take_over(held)
                told = _read(Finishing, held, keys.FINISHING)
                finishing = told is not None and told.round == machine.round.number
                if machine.round.number:  # otherwise nobody has led before
                    over = finishing or keys.END in held
                    # nodes whose job ends leave: each remaining one leads for a moment, which is of no use to know
                    level = logging.DEBUG if over else logging.INFO
                    logger.log(level, "this node is the rendezvous leader from round %d on", machine.round.number)
                known = [Event(kv.key, kv.value, kv.revision) for kv in held.values()]
                self._feed(machine, liveness, [*known, *map(ProvedGone, self._proved)], InitialListDone(finishing))
            while (events := self._wait(machine)) is not None:
                with self._watchdog.turn():
                    self._feed(machine, liveness, events)
        finally:
            watch.cancel()

    def _take_over(self, held: Mapping[str, KeyValue]) -> tuple[RoundStateMachine, LivenessRound]:
        assignments = {
            key.removeprefix(keys.NODES): each
            for key in held
            if key.startswith(keys.NODES) and (each := _read(Assignment, held, key)) is not None
        }
        here = self._place(held) if self._rules.majority else ""
        mark = f"{here}.{self._runtime.uuid4().hex}" if here else ""
        self.led = (mark, 0) if mark else None
        machine = RoundStateMachine(
            self._rules,
            self._order,
            _read(Round, held, keys.ROUND),
            assignments,
            has_begun=keys.INITIALIZED in held,
            first_here=self._first_here,
            mark=mark,
        )
        return machine, LivenessRound(_read(Heartbeat, held, keys.PROBE))

    def _place(self, held: Mapping[str, KeyValue]) -> str:
        """What this place calls itself for as long as its service remembers anything."""
        if keys.PLACE_ID in held:
            return held[keys.PLACE_ID].value.decode(errors="replace")
        mine = self._runtime.uuid4().hex
        self._write({keys.PLACE_ID: mine.encode()})
        return mine

    def _wait(self, machine: RoundStateMachine) -> list[Event | ProvedGone] | None:
        """Wait for events and return all that have come: none if only time has passed, None to stop."""
        now = self._runtime.monotonic()
        deadlines = [at for at in (machine.deadline(), self._progress_at) if at is not None]
        try:
            first = self._inbox.get(timeout=max(0.0, min(deadlines) - now) if deadlines else None)
        except Empty:
            return []
        batches = [first]
        while not self._inbox.empty():
            batches.append(self._inbox.get())
        return None if None in batches else [event for batch in batches for event in batch or ()]

    def _feed(
        self,
        machine: RoundStateMachine,
        liveness: LivenessRound,
        news: Sequence[Event | ProvedGone],
        *more: InitialListDone,
    ) -> None:
        """Have the state machine decide what follows from the news, and publish that."""
        now = self._runtime.monotonic()
        events = [*self._seen.read(news, self._insist), *more]
        update = machine.advance(events, now)
        heartbeat = liveness.advance(events, machine.working, machine.round.number)
        self._publish(update, heartbeat, self._new_progress(machine, now))
        self._seen.end_sessions()

    def _new_progress(self, machine: RoundStateMachine, now: float) -> str:
        """Who is there, when it is time to say so and there is something new; nothing while all is well."""
        if machine.settled:
            self._progress_at = None
            return ""
        due = self._progress_at is not None and now >= self._progress_at
        if self._progress_at is None or due:
            self._progress_at = now + max(_PROGRESS_S, len(machine.members) / _NODES_PER_PROGRESS_S)
        text = machine.facts() if due else ""
        if text == self._progress:
            return ""
        self._progress = text or self._progress
        return text

    def _publish(self, update: RoundUpdate, heartbeat: Heartbeat | None, progress: str) -> None:
        items: dict[str, bytes] = {}
        if update.round is not None and update.round.state == "over":
            items[keys.ROUND] = encode(update.round)  # before the places in the round that follows
        items |= {keys.NODES + node: encode(each) for node, each in update.assignments.items()}
        if update.round is not None and update.round.state != "over":
            items[keys.ROUND] = encode(update.round)
            if self.led is not None:  # before it is written: whatever becomes of that
                self.led = self.led[0], update.round.number
        if update.finishing is not None:
            items[keys.FINISHING] = encode(update.finishing)
        if heartbeat is not None:
            items[keys.PROBE] = encode(heartbeat)
        if progress:
            items[keys.PROGRESS] = progress.encode()
        if update.notices:
            items[keys.NOTICE] = encode(OperatorMessage("; ".join(update.notices)))
        self._neighbours.check(update.assignments)
        if items:
            self._write(items)
        if update.forget:
            forgotten = [keys.NODES + node for node in update.forget]
            self._insist(lambda timeout: self._session.delete(forgotten, guard=self._key, timeout=timeout))

    def _insist(self, request: Callable[[float], T]) -> T:
        with self._watchdog.turn(asks=True):
            return self._ask(request)

    def _ask(self, request: Callable[[float], T]) -> T:
        return self._outage.retry_until_lost(self._session, request)

    def _write(self, items: Mapping[str, bytes]) -> None:
        if self._insist(lambda timeout: self._session.put(items, guard=self._key, timeout=timeout)) is None:
            raise _Replaced


def _read(cls: type[R], held: Mapping[str, KeyValue], key: str) -> R | None:
    return next(readable(cls, [held[key]] if key in held else []), None)


class _Replaced(Exception):
    """Another node leads."""


class CoordinatorWatchdog:
    """Watches the thread that enters ``turn``; calls ``on_stuck`` once if a turn takes longer than ``limit`` seconds.

    Waiting for the service does not count: a session that gets no answer ends by itself. ``on_stuck`` is
    called on the watchdog's thread with a sentence saying where the watched thread is, and may block. Thread-safe.
    """

    def __init__(self, limit: float, on_stuck: Callable[[str], None], runtime: Runtime) -> None:
        self._limit, self._on_stuck, self._runtime = limit, on_stuck, runtime
        self._changed = self._runtime.Condition()
        self._busy_since: float | None = None
        self._watched = 0
        self._ended = False
        self.stuck = False
        """True once the leader was found stuck: it does not lead any more, whatever it does when it goes on."""
        self._runtime.Thread(target=self._run, name="rdzv-leader-watchdog").start()

    @contextlib.contextmanager
    def turn(self, *, asks: bool = False) -> Iterator[None]:
        """A context for one turn of the loop, which may take at most ``limit`` seconds.

        With ``asks``, within a turn: for waiting for an answer from the service.
        """
        self._watched = self._runtime.get_ident()
        self._set_busy(not asks)
        try:
            yield
        finally:
            self._set_busy(asks)

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _set_busy(self, busy: bool) -> None:
        with self._changed:
            self._busy_since = self._runtime.monotonic() if busy else None
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            while not self._ended:
                since = self._busy_since
                left = None if since is None else since + self._limit - self._runtime.monotonic()
                if left is not None and left <= 0:
                    self.stuck = True
                    break
                self._changed.wait(left)
            else:
                return
        self._on_stuck(self._where())

    def _where(self) -> str:
        frame = sys._current_frames().get(self._watched)
        if frame is None:
            return "it has just resumed"
        last = traceback.extract_stack(frame)[-1]
        return f"it is stuck in {last.name} ({last.filename}, line {last.lineno})"


class Neighbours:
    """Warns once for each machine. Use from one thread at a time."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._told: set[str] = set()

    def check(self, assignments: Mapping[str, Assignment]) -> None:
        if self._allowed or len(assignments) < 2:
            return
        machines: dict[str, list[Assignment]] = {}
        for each in assignments.values():
            machines.setdefault(each.machine, []).append(each)
        for machine, nodes in machines.items():
            if len(nodes) > 1 and machine not in self._told and any(each.node_rank is None for each in nodes):
                self._told.add(machine)
                logger.warning(
                    "nodes %s run on the same machine (%s). If that is intended, set "
                    "--rdzv-conf allow_same_host=true or give each node its own --node-rank",
                    " and ".join(f"{each.rank} (pid {each.pid})" for each in nodes),
                    ", ".join(sorted({each.host for each in nodes})),
                )
