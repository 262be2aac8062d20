"""Restarts that do not help: the same failure, at the same place, without progress in between. No I/O, no clock.

Each round that failed has left a note (``Spent``), which all nodes read alike, in the order of the rounds. So all of
them come to the same conclusion, whichever of them the failure was on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from rdzv_launcher.run.summary import describe_exit
from rdzv_launcher.run.workers.tracebacks import read_traceback
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.plain_text import printable

Counts = Literal["code", "any", "off"]
"""Which failures end the job: those of the program's text, all, or none."""

TIMES = 3
"""So many in a row are a loop."""
PROGRESS_S = 600.0
"""Workers that ran for longer have made progress, as far as anybody can tell: they may have saved a checkpoint."""
_AT_ONCE = 2
"""So many restarts without progress wait for nothing."""
_LONGEST_DELAY_S = 60.0
_LONGEST_TEXT = 500


class Spent(Struct, frozen=True):
    """One round that failed, as it is noted for all nodes."""

    what: str
    """The first failure over all nodes, in words that are the same when it comes again."""
    ran: float
    """Seconds from the start of the workers to their end."""
    of_the_text: bool = False
    """The failure is one of the program's text: no restart heals it."""

    @property
    def made_progress(self) -> bool:
        return self.ran >= PROGRESS_S


def spent(failure: Failure, ran: float) -> Spent:
    """The note of a round whose first failure over all nodes was ``failure``, ``ran`` seconds after its start.

    By exception and last frame. The ranks of a job often fail alike, and which of them does so first is chance; only
    where there is no traceback is the rank a part of it.
    """
    found = read_traceback(failure.stderr) if failure.exit_code > 0 else None
    if found is not None and found.place:
        return Spent(f"{found.exception} at {found.place}", ran, found.is_of_the_text)
    if failure.hang:
        return Spent(f"rank {failure.global_rank} stood still", ran)
    return Spent(f"rank {failure.global_rank} ended with {describe_exit(failure.exit_code)}", ran)


def to_note(value: Spent) -> str:
    """The note as text, for ``from_note``."""
    return json.dumps(asdict(value))


def from_note(text: str) -> Spent:
    """The note of any node. One that cannot be read is that of a failure like no other."""
    try:
        data = json.loads(text)
        what, ran, of_the_text = data["what"], data["ran"], data["of_the_text"]
        if type(what) is str and type(ran) in (int, float) and type(of_the_text) is bool:
            return Spent(printable(what)[:_LONGEST_TEXT], float(ran), of_the_text)
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    return Spent("", PROGRESS_S)


def in_a_row(history: Sequence[Spent]) -> int:
    """How often the last failure has come, one after the other and without progress in between; at least 1."""
    last, times = history[-1], 1
    while times < len(history) and not history[-times].made_progress and history[-times - 1].what == last.what:
        times += 1
    return times


def is_loop(history: Sequence[Spent], counts: Counts) -> bool:
    """Whether the last failure is to be the end of the job."""
    if counts == "off" or in_a_row(history) < TIMES:
        return False
    return counts == "any" or all(each.of_the_text for each in history[-TIMES:])


def delay_of(history: Sequence[Spent], first: float) -> float:
    """Seconds to wait before the restart after the last failure, whatever the failures were.

    None before the first two without progress, then ``first``, twice that, and so on, up to a minute; 0 for none.
    """
    tries = 0
    while tries < len(history) and not history[-tries - 1].made_progress:
        tries += 1
    doubled = min(tries - _AT_ONCE - 1, 32)
    return min(first * 2**doubled, max(first, _LONGEST_DELAY_S)) if doubled >= 0 else 0.0
