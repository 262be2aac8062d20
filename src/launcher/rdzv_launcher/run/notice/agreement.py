"""Node rank 0's part: all nodes agree on the step that they save, and nodes that leave hear when that is done.

It asks where the workers are, and then proposes a step beyond that. A node accepts it unless one of its workers has
passed it; workers that reach the step wait. When all nodes that answer have accepted, the step is agreed on; otherwise
a later one is proposed, at least twice as far ahead each time, since steps may be faster than questions. Nothing is
agreed on while no node says that it leaves. See ``rdzv_plugins.preemption``. What nodes tell and ask each other are
arguments of questions and answers, JSON that is checked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from rdzv_plugins.plain_text import printable
from rdzv_plugins.preemption import MOST_STEPS
from rdzv_plugins.questions import checked

logger = logging.getLogger(__name__)

Do = Literal["tell", "propose", "agree", "drop", "over"]
LONGEST_GRACE_S = 24 * 3600.0
_REASON = 500
_MOST = 2**31 - 1
_Step = Annotated[int, Meta(ge=-1, lt=MOST_STEPS)]
_Count = Annotated[int, Meta(ge=-1, le=_MOST)]


class Word(Struct, frozen=True, forbid_unknown_fields=True):
    """One question. Each carries the whole notice, so it does not matter which one a node hears first."""

    round: Annotated[int, Meta(ge=0, le=_MOST)]
    """The asker's round: in another round the question changes nothing."""
    node: Annotated[int, Meta(ge=0, le=_MOST)]
    """The rank of the node that leaves."""
    reason: str
    seconds: Annotated[float, Meta(ge=0, le=LONGEST_GRACE_S)]
    """How long workers have to save, counted from now, as clocks of nodes need not agree."""
    do: Do = "tell"
    step: Annotated[int, Meta(ge=0, lt=MOST_STEPS)] = 0
    """The step that is proposed or agreed on."""
    go_on: bool = True
    """With ``over``: enough nodes are left without those that leave."""
    saved: bool = False
    """With ``over``: all workers that wanted to save have done so."""


class Report(Struct, frozen=True, forbid_unknown_fields=True):
    """What a node answers when asked about a notice."""

    round: Annotated[int, Meta(ge=-1, le=_MOST)]
    at: _Step
    """The most steps that one of its workers has done; -1 if none has reported any."""
    agreed: _Step
    """The step on which it knows that all have agreed; 0: none."""
    waiting: _Count
    """The number of workers that want to save, and have not yet."""
    saved: _Count
    """The number of workers that have saved."""
    leaving: bool
    """Whether the node that answers is one that leaves."""
    accepts: bool
    """None of its workers has passed the proposed step."""


def word_of(arguments: Mapping[str, Any]) -> Word:
    """Read a word from a question's arguments. Raises ``ValueError``."""
    word = checked(dict(arguments), Word)
    if word.do in ("propose", "agree") and word.step < 1:
        raise ValueError(f"not a Word: to {word.do} step={word.step}")
    return replace(word, reason=printable(word.reason)[:_REASON])


Ask = Callable[[Word, float], tuple[list[Report], int]]

_TRIES = 16
_ANSWER_S = 3.0
_AGAIN = 4
"""How often the step is sent again to nodes that have accepted it but do not say that they know it."""
_FIRST_PAUSE_S, _PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.05, 1.0, 3.0, 1.5
_LATER = 30
"""Looks become rarer over time: each comes after a thirtieth of the time so far, up to ``_LONGEST_PAUSE_S``."""


class Agreement(threading.Thread):
    """One for each start of the workers in which there is a notice."""

    def __init__(
        self,
        word: Word,
        generation: int,
        ask: Ask,
        seconds_left: Callable[[], float],
        least: int,
        may_agree: bool,
    ) -> None:
        """``least``: how many of the nodes that ``ask`` knows of are needed for the job to go on.

        ``may_agree`` False: not all nodes of the round can be asked, so there is no step for all.
        """
        super().__init__(name="rdzv-notice-agreement", daemon=True)
        self._word, self._generation = word, generation
        self._ask_all, self._seconds_left = ask, seconds_left
        self._least, self._may_agree = least, may_agree
        self._stopped = threading.Event()
        self._most_told = 0
        """The most nodes that have had workers who want to save: a node that is not heard from may still be saving."""
        self._step, self._accepted, self._again = 0, 0, 0
        """The step agreed on, how many nodes accepted it, and how often they may still be told of it again."""

    def is_of(self, generation: int) -> bool:
        """Whether it is the one for this start, and at work."""
        return self._generation == generation and self.is_alive()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Ask the nodes, and settle on a step, until that is done or the deadline has come."""
        said: tuple[bool, bool, int] | None = None
        most_leaving, pause, waited = 0, _FIRST_PAUSE_S, 0.0
        while (left := self._seconds_left()) > 0 and not self._stopped.is_set():
            reports, others = self._ask(self._look())
            leaving = sum(each.leaving for each in reports)
            if leaving > most_leaving:  # what came before may have been a false notice
                most_leaving, pause, waited = leaving, _FIRST_PAUSE_S, 0.0
            saved = self._have_saved(reports)
            if most_leaving and self._is_to_agree(reports):
                self._agree(reports)
                continue
            go_on = len(reports) + others - leaving >= self._least
            if leaving and said != (go_on, saved, leaving):
                said = go_on, saved, leaving
                self._ask(replace(self._word, do="over", go_on=go_on, saved=saved))
            self._stopped.wait(min(pause, left))
            waited += pause
            pause = max(min(pause * _GROWTH, _PAUSE_S), min(waited / _LATER, _LONGEST_PAUSE_S))

    def _look(self) -> Word:
        """The question of where all are; as long as somebody may not know the step, it also tells the step."""
        if self._again == 0:
            return self._word
        self._again -= 1
        return replace(self._word, do="agree", step=self._step)

    def _is_to_agree(self, reports: list[Report]) -> bool:
        know = sum(each.agreed > 0 for each in reports)
        if know >= self._accepted:
            self._again = 0
        if know == 0 and self._again == 0 and len(reports) >= self._accepted:
            self._step = 0  # nobody has heard of it in time
        return self._may_agree and not know and not self._step and any(each.at >= 0 for each in reports)

    def _have_saved(self, reports: list[Report]) -> bool:
        """Whether all workers that want to have saved, on every node that was ever known to have such workers."""
        told = sum(each.waiting + each.saved > 0 for each in reports)
        self._most_told = max(self._most_told, told)
        return 0 < told == self._most_told and not any(each.waiting > 0 for each in reports)

    def _agree(self, reports: list[Report]) -> None:
        at, ahead, step = max(each.at for each in reports), 1, 0
        for _ in range(_TRIES):
            step = min(at + ahead, MOST_STEPS - 1)
            reports, _ = self._ask(replace(self._word, do="propose", step=step))
            if reports and all(each.accepts for each in reports):
                self._step, self._accepted, self._again = step, len(reports), _AGAIN
                return
            if not reports or self._stopped.is_set():  # a question was lost: the next look finds out the state
                self._ask(replace(self._word, do="drop", step=step))
                return
            furthest = max(at, *(each.at for each in reports))
            at, ahead = furthest, max(2 * ahead, 2 * (furthest - at))
        self._ask(replace(self._word, do="drop", step=step))
        self._may_agree = False
        logger.warning("the nodes could not agree on a step that all save: the notice names none")

    def _ask(self, word: Word) -> tuple[list[Report], int]:
        left = self._seconds_left()
        return self._ask_all(replace(word, seconds=left), max(0.1, min(_ANSWER_S, left / 5)))
