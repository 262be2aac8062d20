"""Does a worker make progress? Judged by its signs of life, and by samples of its place. No I/O, no clock of its own.

Waiting shows in the signs alone: no processor is used or wanted, and nothing is read or written. A worker that uses a
processor may be computing, or spinning: samples of its main thread tell which. It makes progress if lines or variables
appear that were not seen before; if native code computes; or if threads other than the main one do. What remains is a
loop of Python around the same few lines with the same variables, or spinning in a call that waits for other workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct


class Signs(Struct, frozen=True):
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


class Standstill:
    """The standstill of one worker. For one thread at a time. All times are monotonic and in seconds."""

    def __init__(self, signs: Signs, credit_s: float) -> None:
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

    def look(self, signs: Signs, below: float | None = None) -> None:
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
