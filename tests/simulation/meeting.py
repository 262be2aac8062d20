"""A rendezvous without messages, for tests of agents: what the handlers of a job know is one object, known at once.

It says what the elastic engine says, and when: a node is lost when its process has ended, or has stood still for too
long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from rdzv_plugins.errors import NotNeeded, RendezvousTimeout, SpareReleased, StoreLost, StoreTimeout
from rdzv_plugins.interfaces import Failure, Outcome, Request, RoundInfo, StoreInfo
from rdzv_plugins.rounds.ends import ended_error
from simulation.scheduler import Process, Scheduler, Thread

_REQUEST = Request(backend="meeting", run_id="job", endpoint="", min_nodes=1, max_nodes=1, nproc_per_node=1)
_PROOF_S = 0.05
_SLOW, _SLOWEST_S = 0.05, 0.25
"""How often it takes up to so long to tell the others something: never longer than until workers fail with another."""
_LATER = 4 / 3
"""A service counts a node's time to live from when it has heard it, which is later than when the node has spoken."""
"""How soon the end of a process is noticed."""


@dataclass
class Round:
    """One round. ``members`` are in the order of their ranks."""

    number: int
    members: list[Handler]
    said: int = 0
    """Its number as the engine says it."""
    over: str = ""
    """Why it is over, if it is."""
    asked: bool = False
    """It is over because a node of it has asked for another: no node was lost."""
    failure: Failure | None = None
    finishing: bool = False
    store: dict[str, bytes] = field(default_factory=dict)


class Meeting:
    """What all nodes of a job know."""

    forgets = False
    """When all nodes have gone, whoever comes then is the first of another job: then there is ``came``, too."""

    def __init__(
        self,
        scheduler: Scheduler,
        low: int,
        high: int,
        *,
        ttl: float = 5.0,
        last_call: float = 2.0,
        interrupts: bool = True,
    ) -> None:
        """``interrupts``: waits in the store of a round end with the round."""
        self.interrupts = interrupts
        self.latency = 0.0
        """How long it takes on average to tell the others something, or to ask them."""
        self.scheduler, self.low, self.high, self.ttl, self.last_call = scheduler, low, high, ttl, last_call
        self.nodes: list[Handler] = []
        """Those that are in the job now, as far as is known."""
        self.rounds: list[Round] = []
        self.ended: Outcome | None = None
        self.notes: dict[int, str] = {}
        """Of restarts, by round."""
        self.on_over: Callable[[Round], object] = lambda round_: None
        self.ended_at = 0.0
        self._waiting: list[Thread] = []
        self._since: float | None = None
        """Since when enough nodes wait for a round."""

    def handler(self, process: Process, timeout: float = 600.0) -> Handler:
        """That of one node."""
        return Handler(self, process, timeout)

    @property
    def failed(self) -> bool:
        """The job has ended, and not well."""
        return self.ended is not None and self.ended.end != "done"

    @property
    def round(self) -> Round | None:
        return self.rounds[-1] if self.rounds else None

    def wait(self, until: Callable[[], object], seconds: float) -> bool:
        """Wait for a change that makes it so; False if it is not so after that time."""
        end = self.scheduler.now + seconds
        while not until():
            left = end - self.scheduler.now
            if left <= 0:
                return False
            self.scheduler.wait(self._waiting, left)
        return True

    def takes_time(self) -> None:
        """Somebody tells the others something, or asks them."""
        random = self.scheduler.random
        if self.latency:
            usual = min(random.expovariate(1 / self.latency), _SLOWEST_S)
            self.scheduler.sleep(random.random() * _SLOWEST_S if random.random() < _SLOW else usual)

    def changed(self) -> None:
        self.scheduler.wake_all(self._waiting)
        for each in list(self.nodes):
            if each.call is not None and not each.process.frozen and not each.process.killed:
                each.call()

    def end_round(self, why: str, *, asked: bool = False) -> None:
        last = self.round
        if last is not None and not last.over:
            last.over, last.asked = why, asked
            self.on_over(last)
            self.changed()

    def lose(self, node: Handler, why: str) -> None:
        """The node's session has ended."""
        node.session_ended = True
        self.part(node, why)

    def part(self, node: Handler, why: str) -> None:
        """The node takes no part any more."""
        if node in self.nodes:
            self.nodes.remove(node)
            if self.round is not None and node in self.round.members and not node.done:
                self.end_round(f"{node.process} was lost: {why}")
            if self.round is not None and not any(each in self.nodes for each in self.round.members):
                self.round.finishing = not self.round.over
            self.assign()
            self.changed()

    def assign(self) -> None:
        """Begin a round if that can be."""
        last, joining = self.round, [each for each in self.nodes if each.joins]
        if last is not None and not last.over and joining and len(last.members) < self.high and not last.finishing:
            self.end_round("another node may take part")
        if self.ended is not None or (last is not None and not last.over):
            return
        if len(joining) < self.low:
            self._since = None
            return
        if self._since is None:
            self._since = self.scheduler.now
        if last is not None and not all(each.joins for each in self.nodes if each in last.members):
            return
        due = self._since + self.last_call
        if last is None and len(joining) < self.high and self.scheduler.now < due:
            self.scheduler.at(due, self.assign)
            return
        self._since = None
        members = sorted(joining, key=lambda each: (each.rank is None, each.rank or 0, each.process.name))[: self.high]
        self.rounds.append(Round(len(self.rounds) + 1, members))
        for rank, each in enumerate(members):
            each.joins, each.rank, each.done = False, rank, False
        self.changed()


class Handler:
    """A ``RendezvousHandler``, and its own ``Holding``."""

    def __init__(self, meeting: Meeting, process: Process, timeout: float) -> None:
        self._meeting, self._scheduler, self._timeout = meeting, meeting.scheduler, timeout
        self.process = process
        self.joins = self.done = self.session_ended = False
        self.rank: int | None = None
        self.mine: Round | None = None
        self.leaving = ""
        self.broken: Exception | None = None
        """What it raises when it is asked for news."""
        self.outcome: Outcome | None = None
        self.call: Callable[[], None] | None = None
        self.questions = None
        self._heard = self._scheduler.now
        self._gone = False
        process.on_end.append(
            lambda: self._scheduler.at(self._scheduler.now + _PROOF_S, lambda: meeting.lose(self, "it ended"))
        )
        self._beat()

    def _beat(self) -> None:
        """Its session is kept alive, as long as its process runs."""
        if self.process.killed or self._gone:
            return
        if not self.process.frozen:
            self._heard = self._scheduler.now
        elif self._scheduler.now - self._heard >= self.ttl * _LATER:
            self._meeting.lose(self, "it stood still")
        self._scheduler.at(self._scheduler.now + self.ttl / 3, self._beat)

    # The rounds

    def get_run_id(self) -> str:
        return "job"

    def next_rendezvous(self) -> RoundInfo:
        meeting, spare = self._meeting, False
        meeting.takes_time()
        if self._works():  # one that comes back with another session was lost
            meeting.end_round(f"{self.process} has asked for another", asked=not self.session_ended)
        if self not in meeting.nodes:
            meeting.nodes.append(self)
        self.session_ended, self.joins = False, True
        before = self.mine.number if self.mine is not None else 0

        def found() -> bool:
            return meeting.ended is not None or self.session_ended or self._place(before) is not None or finishing()

        def finishing() -> bool:
            last = meeting.round
            return last is not None and last.finishing and not last.over and self not in last.members

        meeting.assign()
        while not meeting.wait(found, self._timeout):
            if not (spare := self._is_spare()):
                raise RendezvousTimeout(f"{len(meeting.nodes)} of {meeting.low} nodes are there")
        self._raise_if_ended(done_too=True)
        if (place := self._place(before)) is not None:
            self.mine = place
            assert self.rank is not None
            store = Store(self._meeting, place)
            return RoundInfo(store, self.rank, len(place.members), StoreInfo(self.process.host, 1))
        if self.session_ended:
            return self.next_rendezvous()
        self.joins = False
        raise SpareReleased("done without this node") if spare or before or self._is_spare() else NotNeeded("too late")

    def _is_spare(self) -> bool:
        return self._meeting.round is not None and not self._meeting.round.over

    def _place(self, before: int) -> Round | None:
        last = self._meeting.round
        return last if last is not None and last.number > before and self in last.members else None

    def _works(self) -> bool:
        return self.mine is not None and self.mine is self._meeting.round and not self.mine.over

    def must_rejoin(self) -> bool:
        return self.mine is not None and (bool(self.mine.over) or self.session_ended)

    def num_nodes_waiting(self) -> int:
        self.raise_if_ended()
        if self.broken is not None:
            raise self.broken
        return int(self.must_rejoin())

    # What others hear

    def note_failure(self, failure: Failure) -> None:
        mine = self.mine
        self._meeting.takes_time()
        if mine is not None and mine.failure is None:
            mine.failure = failure

    def first_failure(self) -> Failure | None:
        self._meeting.takes_time()
        return None if self.mine is None else self.mine.failure

    def count_restart(self, note: str) -> Sequence[str]:
        assert self.mine is not None
        self._meeting.takes_time()
        self._meeting.notes.setdefault(self.mine.number, note)
        return [note for _, note in sorted(self._meeting.notes.items())]

    def note_done(self) -> None:
        self._meeting.takes_time()
        self.done = True
        self._meeting.changed()

    def note_leaving(self, reason: str) -> None:
        self._meeting.takes_time()
        self.leaving = reason
        self._meeting.part(self, reason)

    def peer_lost(self) -> bool:
        """Whether every other node of the round gives a sign of life: one that stands still is waited for."""
        mine = self.mine
        if mine is None or len(mine.members) == 1:
            return False
        others = [each for each in mine.members if each is not self]
        self._meeting.takes_time()

        def silent(other: Handler) -> bool:
            return other in self._meeting.nodes and (other.process.frozen or other.process.killed)

        def known() -> bool:
            self.raise_if_ended()
            return self.must_rejoin() or not any(map(silent, others))

        while not self._meeting.wait(known, _PROOF_S):
            pass
        return self.session_ended or (bool(mine.over) and not mine.asked)

    def working_peers(self) -> Sequence[str]:
        if self.mine is None:
            return ()
        return [str(each.process) for each in self.mine.members if each in self._meeting.nodes and not each.done]

    def lost_peers(self) -> Sequence[str]:
        return ()

    def raise_if_ended(self) -> None:
        self._raise_if_ended(done_too=False)

    def _raise_if_ended(self, *, done_too: bool) -> None:
        ended = self._meeting.ended
        if ended is not None and (done_too or ended.end != "done"):
            raise ended_error(ended, _REQUEST)

    def stay(self) -> None:
        if self.mine is not None and self.rank == 0:
            self._finish()
            self._meeting.wait(lambda: not self._needed() or self._failed(), 3600.0)
            self.raise_if_ended()

    def _failed(self) -> bool:
        return self._meeting.ended is not None or self.must_rejoin()

    def _needed(self) -> bool:
        assert self.mine is not None
        return any(each in self._meeting.nodes and not each.done for each in self.mine.members)

    def _finish(self) -> None:
        if self.mine is not None:
            self.mine.finishing = True
            self._meeting.changed()

    def leave(self, outcome: Outcome) -> None:
        self.outcome, meeting = outcome, self._meeting
        meeting.takes_time()
        if outcome.end == "failed" and meeting.ended is None:
            meeting.ended, meeting.ended_at = outcome, self._scheduler.now
        if outcome.end == "done":
            self.done = True
            self._finish()
        meeting.part(self, outcome.reason or outcome.end)
        meeting.changed()

    def shutdown(self) -> bool:
        self._gone = True
        self._meeting.lose(self, "it left")
        return True

    # Its holding

    @property
    def holding(self) -> Handler:
        return self

    @property
    def ttl(self) -> float:
        return self._meeting.ttl

    def until(self) -> float:
        if self.must_rejoin() or self.session_ended:
            return 0.0
        return self._heard + self.ttl

    def ended(self) -> bool:
        return self.session_ended and self.mine is not None

    def sure(self) -> bool:
        return not self.session_ended and self._scheduler.now < self._heard + self.ttl

    def confirm(self, timeout: float) -> bool:
        return not self.session_ended

    def wait_for_news(self, timeout: float) -> None:
        self._scheduler.wait(self._meeting._waiting, timeout)

    def on_news(self, call: Callable[[], None] | None) -> None:
        self.call = call


class Store:
    """That of the agents of a round. It goes with the node of rank 0; waits end when the round is over."""

    timeout = timedelta(seconds=60)

    def __init__(self, meeting: Meeting, of: Round) -> None:
        self._meeting, self._round, self._data = meeting, of, of.store

    def set(self, key: str, value: str) -> None:
        self._use()
        self._data[key] = value.encode()
        self._meeting.changed()

    def get(self, key: str) -> bytes:
        self.wait([key], self.timeout)
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        self._use()
        value = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(value).encode()
        self._meeting.changed()
        return value

    def check(self, keys: list[str]) -> bool:
        self._use()
        return all(key in self._data for key in keys)

    def multi_set(self, keys: list[str], values: list[str]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        return [self.get(key) for key in keys]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        if not self._meeting.wait(lambda: self.check(keys), timeout.total_seconds()):
            raise StoreTimeout(f"not there: {keys}")

    def _use(self) -> None:
        self._meeting.scheduler.pause()
        if self._round.members[0].process.killed:
            raise StoreLost("the node that served it has ended")
        if self._meeting.interrupts and (self._round.over or self._meeting.failed):
            raise StoreLost(f"round {self._round.number} is over: {self._round.over}")
