"""Does the job hang, and which worker is different? Judged without I/O, and without a clock of its own.

First whether one worker makes progress, by its signs of life and by samples of its place. Waiting shows in the signs
alone: no processor is used or wanted, and nothing is read or written. A worker that uses a processor may be computing,
or spinning: samples of its main thread tell which. It makes progress if lines or variables appear that were not seen
before; if native code computes; or if threads other than the main one do. What remains is a loop of Python around the
same few lines with the same variables, or spinning in a call that waits for other workers.

Then the job, from what its nodes say, which is checked. It hangs if all nodes of the round have answered and none of
their workers has made progress for the time-out. A node that says otherwise, or cannot tell, prevents this verdict: a
needless restart is worse than a late one. Only a node that has been silent, or has answered nonsense, for twice the
time-out counts as standing still itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct, to_builtins

from rdzv_launcher.run.stacks.reports import Silent, StackGroup, WorkerReport, doing, grouped, headline
from rdzv_plugins.errors import JobHung
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.plain_text import printable
from rdzv_plugins.questions import RpcResponse, checked


class ProgressSignals(Struct, frozen=True):
    """What had been counted for one process at some moment. Times are in seconds."""

    at: float
    """The moment of the count (monotonic)."""
    state: str
    """One letter, as in /proc/PID/stat."""
    born: int
    """When it was started, in ticks: another process with the same pid has another value."""
    main_s: float
    """The processor time that the main thread got, or wanted while others had it."""
    all_s: float
    """The processor time of all threads, and of children that have been waited for."""
    faults: int
    """Pages that it had to wait for, from a file or from swap: a kind of reading that is not among the bytes."""
    moved: int
    """Bytes that it has read and written through files and pipes; 0 if that may not be seen."""


Native = Literal["loop", "waits", "computes"]
"""What the main thread does below its innermost line of Python: just run it, wait for others, or anything else."""


@dataclass(frozen=True)
class Sample:
    """Where the main thread was at one moment."""

    at: float
    """The moment of the sample (monotonic, seconds)."""
    print: int
    """Equal for the same lines with the same variables."""
    runs: bool
    """Python's own code was running: the thread was on a processor, and held the interpreter's lock."""
    meets: bool
    """The thread was in a call that waits for other workers, or for the device."""


Kind = Literal["moves", "waits", "spins", "loops", "stopped", "stuck", "done"]
"""``spins``: it waits for others, and uses a processor; ``loops``: in Python, without anything new."""

_QUIET = 0.05
"""The largest share of a processor that waiting takes: polls, heartbeats, watchdogs."""
_TICKS_S = 0.021
"""The kernel's count of processor time may lag by this much."""
_BYTES_PER_S = 4096.0
"""The most that is read and written while waiting, per second."""
_LEAST_SAMPLES = 4
"""How many samples in a row must have shown nothing new."""
_MOST_PRINTS = 8
"""The most combinations of lines and variables in a loop that goes nowhere; a loop that shows more does something."""


@dataclass(frozen=True)
class Standing:
    """Whether a worker makes progress; if not, since when, and how it stands."""

    kind: Kind
    seconds: float = 0.0
    """For how long no progress was seen, in seconds."""

    @property
    def is_still(self) -> bool:
        return self.kind not in ("moves", "done")

    @property
    def is_quiet(self) -> bool:
        """Whether this is known without samples of its place."""
        return self.kind in ("waits", "stopped", "stuck", "done")


class StallDetector:
    """The standstill of one worker. For one thread at a time. All times are monotonic and in seconds."""

    def __init__(self, signs: ProgressSignals, credit_s: float) -> None:
        """``credit_s``: the most that one look may account for; with more between two, the machine stood still."""
        self._signs, self._credit_s = signs, credit_s
        self._below: tuple[float, float] | None = None
        """When the processes below it were first read in this quiet period, and their processor time then."""
        self._quiet_since = self._state_since = signs.at
        self._quiet = False
        self._main_runs = False
        self._told, self._told_since = 0, signs.at
        self._prints: set[int] = set()
        self._new_at: float | None = None
        """When something new was sampled, or the first sample was taken."""
        self._last: list[Sample] = []
        """The newest few samples since then."""
        self._native: Native | None = None

    @property
    def born(self) -> int:
        return self._signs.born

    @property
    def quiet_s(self) -> float:
        """For how long it has used hardly any processor time; 0 if it uses some."""
        return self._signs.at - self._quiet_since if self._quiet else 0.0

    @property
    def wants_native(self) -> bool:
        """The samples alone do not tell: it is always at one line with the same variables."""
        return self._is_steady and self._native is None and self._is_at_one_place and not self._meets

    def look(self, signs: ProgressSignals, below: float | None = None) -> None:
        """Take its signs at a later moment. ``below``: the processor time of all processes below it, if it was read."""
        before, took = self._signs, signs.at - self._signs.at
        if took <= 0:
            return
        limit = _QUIET * took + _TICKS_S
        late = max(0.0, took - self._credit_s)
        moved = signs.moved - before.moved > _BYTES_PER_S * took or signs.faults > before.faults
        self._main_runs = signs.main_s - before.main_s > limit or signs.state == "R"
        busy = moved or self._main_runs or signs.all_s - before.all_s > limit
        busy = self._below_is_busy(signs.at, below) or busy
        if moved or not (busy or self._quiet):
            self._start_anew(signs.at)
        if not self._quiet or busy:
            self._quiet_since = signs.at if busy else before.at
        self._quiet_since, self._told_since = min(signs.at, self._quiet_since + late), self._told_since + late
        if self._new_at is not None:
            self._new_at += late
        self._quiet = not busy
        if signs.state != before.state:
            self._state_since = signs.at
        self._signs = signs

    def _below_is_busy(self, at: float, below: float | None) -> bool:
        """Whether processes below used a processor since they were first read: bursts may lie between two looks."""
        if below is None or self._below is None:
            self._below = None if below is None else (at, below)
            return False
        since, before = self._below
        if not before <= below <= before + _QUIET * (at - since) + _TICKS_S:  # less: some have ended
            self._below = at, below
            return True
        return False

    def tell(self, told: int) -> None:
        """Take a number that changes when the script reports progress; 0: it never has. Otherwise only this counts."""
        if told != self._told:
            self._told, self._told_since = told, self._signs.at

    def sample(self, sample: Sample) -> None:
        """Take a sample of its main thread, while it uses a processor."""
        new = sample.print not in self._prints
        if new and len(self._prints) >= _MOST_PRINTS:
            self._start_anew(sample.at)
        if new or self._new_at is None:
            self._new_at, self._last, self._native = sample.at, [], None
        self._prints.add(sample.print)
        self._last = [*self._last[-_LEAST_SAMPLES:], sample]

    def native(self, native: Native) -> None:
        """Take what it does below its innermost line of Python."""
        self._native = native
        if native == "computes":  # that is progress; it is asked again later, as it may be waiting by then
            self._start_anew(self._signs.at)

    def standing(self) -> Standing:
        """How it stands, as of the last look."""
        now = self._signs.at
        if self._told:
            return Standing(self._still_kind(), max(0.0, now - self._told_since))
        if self._quiet:
            return Standing(self._still_kind(), self.quiet_s)
        kind = self._busy_kind()
        return Standing(kind, max(0.0, now - (self._new_at or now)) if kind != "moves" else 0.0)

    def _still_kind(self) -> Kind:
        long = self._signs.at - self._state_since > 0  # a debugger that reads a stack stops it for a moment
        if long and self._signs.state in "Tt":
            return "stopped"
        return "stuck" if long and self._signs.state == "D" else "waits"

    @property
    def _is_steady(self) -> bool:
        return len(self._last) > _LEAST_SAMPLES

    def _busy_kind(self) -> Kind:
        if not self._is_steady or self._signs.at - self._last[-1].at > 2 * self._credit_s:  # nothing is known of it now
            return "moves"
        if self._meets or self._native == "waits":
            return "spins"
        if not (self._main_runs and self._runs):  # native code, or other threads, compute
            return "moves"
        return "loops" if not self._is_at_one_place or self._native == "loop" else "moves"

    @property
    def _is_at_one_place(self) -> bool:
        return len({each.print for each in self._last}) == 1

    @property
    def _runs(self) -> bool:
        """Whether most of the last samples found it in Python's own code."""
        return sum(each.runs for each in self._last) * 2 > len(self._last)

    @property
    def _meets(self) -> bool:
        """Whether it is in a call that waits for others, and not working for it, such as turning objects into bytes."""
        return self._last[-1].meets and not self._runs

    def _start_anew(self, at: float | None) -> None:
        """Discard what was sampled before."""
        self._prints, self._last, self._native = set(), [], None
        self._new_at = at


_MOST_WORKERS = 4096
SUSPECTED = 0.5
"""After this part of the time-out a hang is suspected, and what can only be known from samples becomes known."""


class NodeStanding(Struct, frozen=True):
    """What one node says about its workers' progress, as JSON to the node that asks."""

    node_rank: int
    """The node's rank, as its agent knows it; -1 before its first round."""
    works: bool
    """Its workers are running, or have finished; False: it is starting or stopping them."""
    watches: bool
    """It was started with a time-out for hangs; otherwise it cannot tell."""
    workers: Sequence[tuple[int, Kind, float]] = ()
    """The global rank of each worker, and its ``Standing``: others may say anything."""

    @property
    def by_rank(self) -> dict[int, Standing]:
        """How the workers stand, by global rank."""
        return {
            rank: Standing(kind, seconds if math.isfinite(seconds) else 0.0)
            for rank, kind, seconds in self.workers[:_MOST_WORKERS]
        }


UNWATCHED = to_builtins(NodeStanding(-1, works=True, watches=False))
"""What a node says that does not watch for hangs."""


@dataclass(frozen=True)
class Verdict:
    """What follows from the answers."""

    hangs: bool
    in_s: float
    """In how many seconds it may be so, if nothing changes; infinite while somebody makes progress."""
    silent: tuple[RpcResponse, ...] = ()
    """Nodes that count as standing still, because nothing arrives from them."""
    loops: frozenset[int] = frozenset()
    """The global ranks of workers that are in a loop of Python, without anything new."""
    unknown: str = ""
    """Why it cannot be known, in a sentence; empty if it can."""


class Judge:
    """One asker's view of the nodes of one round. For one thread at a time."""

    def __init__(self, timeout: float, nodes: int) -> None:
        """``timeout`` is in seconds; ``nodes`` is the number of nodes in the round."""
        self._timeout, self._nodes = timeout, nodes
        self._silent_since: dict[int, float] = {}

    def judge(self, answers: Sequence[RpcResponse], now: float) -> Verdict:
        """What the nodes' newest answers mean; ``now``, in seconds, may count from any starting point."""
        found: dict[int, RpcResponse] = {}
        for each in answers:
            if each.node_rank is not None and each.node_rank < self._nodes:
                found[each.node_rank] = each
        if len(found) < self._nodes:  # a node is lost, or the round is about to change
            return Verdict(False, math.inf)
        missing, silent, standings = 0.0, [], []
        for rank, each in found.items():
            standing, problem = _read(each, rank)
            if standing is not None:
                self._silent_since.pop(rank, None)
                standings.append(standing)
            elif problem:
                return Verdict(False, math.inf, unknown=f"node {rank} on {printable(each.host)} {problem}")
            else:
                since = self._silent_since.setdefault(rank, now)
                missing = max(missing, since + 2 * self._timeout - now)
                silent.append(each)
        if any(not each.works for each in standings):
            return Verdict(False, math.inf)
        workers = [worker for each in standings for worker in each.by_rank.values()]
        if any(worker.kind == "moves" for worker in workers) or not any(worker.is_still for worker in workers):
            return Verdict(False, math.inf)
        missing = max(missing, *(self._missing(worker) for worker in workers))
        loops = frozenset(rank for each in standings for rank, kind, _ in each.workers if kind == "loops")
        return Verdict(missing <= 0, max(0.0, missing), tuple(silent), loops)

    def _missing(self, worker: Standing) -> float:
        """How many seconds are missing until it has stood still for long enough."""
        if not worker.is_still:
            return 0.0
        return self._timeout * (1 - SUSPECTED if worker.kind in ("loops", "spins") else 1.0) - worker.seconds


def _read(answer: RpcResponse, rank: int) -> tuple[NodeStanding | None, str]:
    """What a node says, or why it cannot tell; neither if nothing readable arrives from it."""
    if answer.problem:
        return None, "" if answer.is_silent else answer.problem
    try:
        standing = checked(answer.answer, NodeStanding)
    except ValueError:
        return None, ""
    if not standing.watches:
        return None, "was started without --hang-timeout"
    return (standing, "") if standing.node_rank == rank or not standing.works else (None, "")


_FIRST = ("stopped", "stuck", "running")
"""States that by themselves single out a worker."""


def find_outlier(
    workers: Sequence[WorkerReport],
    silent: Sequence[RpcResponse],
    unread: Sequence[Silent],
    loops: Set[int],
    timeout: float,
) -> Failure:
    """The odd one of a job without progress for ``timeout`` seconds, in place of a worker that has failed.

    Its cause says in one sentence where all workers are. ``silent`` and ``loops`` are as in ``Verdict``; ``unread`` are
    the nodes whose stacks did not arrive. ``workers`` or ``silent`` is not empty.
    """
    groups = grouped(workers)
    text = headline(groups, unread)
    since = f"no worker of the job has made progress for {timeout:g} s"
    code = JobHung.exit_code
    if silent or not groups:
        node = silent[0]
        what = f"{'does not answer' if node.is_silent else 'sends invalid answers'}, and {since}"
        rank = -1 if node.node_rank is None else node.node_rank
        return Failure(rank, node.host, -1, -1, node.pid, code, cause=text, hang=what)
    group = min(groups, key=lambda each: _outlier_order(each, loops))
    worker = group.workers[0]
    alone = StackGroup(group.kind, (worker,))
    return Failure(
        -1 if worker.node_rank is None else worker.node_rank,
        worker.host,
        worker.rank,
        worker.local_rank,
        worker.process.pid,
        code,
        cause=text,
        hang=f"{doing(alone)}, and {since}",
    )


def _outlier_order(group: StackGroup, loops: Set[int]) -> tuple[int, int, bool, int]:
    """A sort key, least for the odd one: state, then the smaller group, then one that does not wait for the others."""
    is_loop = not loops.isdisjoint(group.ranks)
    kind = "running" if is_loop else group.kind
    first = _FIRST.index(kind) if kind in _FIRST and (is_loop or kind != "running") else len(_FIRST)
    return first, len(group.workers), group.meets, group.ranks[0]
