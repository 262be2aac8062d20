"""This node's part in notices: it shows its workers those of all nodes, answers for them, and gives its own.

Workers are shown a page, a file and a signal, and report themselves on the page.

Node rank 0 has another part: all nodes agree on the step that they save, and nodes that leave hear when that is done.
It asks where the workers are, and then proposes a step beyond that. A node accepts it unless one of its workers has
passed it; workers that reach the step wait. When all nodes that answer have accepted, the step is agreed on; otherwise
a later one is proposed, at least twice as far ahead each time, since steps may be faster than questions. Nothing is
agreed on while no node says that it leaves. See ``rdzv_plugins.preemption``. What nodes tell and ask each other are
arguments of questions and answers, JSON that is checked.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from rdzv_launcher.run.agent.events import NoticeAnswered
from rdzv_launcher.run.preemption.settings import warn_of_near_end
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.clock import now, now_ns
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.plain_text import printable
from rdzv_plugins.preemption import (
    AT,
    DEADLINE,
    FILE,
    FIRST,
    LIMIT,
    MOST_STEPS,
    NODE,
    NUMBER,
    ROUND,
    SAVED,
    SEEN_S,
    START,
    VALID_S,
    VARIABLE,
    WIDTH,
    size_of,
)
from rdzv_plugins.questions import NOTICE, NodeRpc, RpcRequest, checked
from rdzv_plugins.runtime import OwnThread
from rdzv_plugins.shared_numbers import SharedNumbers

logger = logging.getLogger(__name__)

Do = Literal["tell", "propose", "agree", "drop", "over"]
LONGEST_GRACE_S = 24 * 3600.0
_REASON = 500
_MOST = 2**31 - 1
_Step = Annotated[int, Meta(ge=-1, lt=MOST_STEPS)]
_Count = Annotated[int, Meta(ge=-1, le=_MOST)]


class NoticeMessage(Struct, frozen=True, forbid_unknown_fields=True):
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


class StepReport(Struct, frozen=True, forbid_unknown_fields=True):
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


def read_message(arguments: Mapping[str, Any]) -> NoticeMessage:
    """Read a message from a question's arguments. Raises ``ValueError``."""
    message = checked(dict(arguments), NoticeMessage)
    if message.do in ("propose", "agree") and message.step < 1:
        raise ValueError(f"not a NoticeMessage: to {message.do} step={message.step}")
    return replace(message, reason=printable(message.reason)[:_REASON])


Ask = Callable[[NoticeMessage, float], tuple[list[StepReport], int]]

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
        message: NoticeMessage,
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
        self._message, self._generation = message, generation
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
                self._ask(replace(self._message, do="over", go_on=go_on, saved=saved))
            self._stopped.wait(min(pause, left))
            waited += pause
            pause = max(min(pause * _GROWTH, _PAUSE_S), min(waited / _LATER, _LONGEST_PAUSE_S))

    def _look(self) -> NoticeMessage:
        """The question of where all are; as long as somebody may not know the step, it also tells the step."""
        if self._again == 0:
            return self._message
        self._again -= 1
        return replace(self._message, do="agree", step=self._step)

    def _is_to_agree(self, reports: list[StepReport]) -> bool:
        know = sum(each.agreed > 0 for each in reports)
        if know >= self._accepted:
            self._again = 0
        if know == 0 and self._again == 0 and len(reports) >= self._accepted:
            self._step = 0  # nobody has heard of it in time
        return self._may_agree and not know and not self._step and any(each.at >= 0 for each in reports)

    def _have_saved(self, reports: list[StepReport]) -> bool:
        """Whether all workers that want to have saved, on every node that was ever known to have such workers."""
        told = sum(each.waiting + each.saved > 0 for each in reports)
        self._most_told = max(self._most_told, told)
        return 0 < told == self._most_told and not any(each.waiting > 0 for each in reports)

    def _agree(self, reports: list[StepReport]) -> None:
        at, ahead, step = max(each.at for each in reports), 1, 0
        for _ in range(_TRIES):
            step = min(at + ahead, MOST_STEPS - 1)
            reports, _ = self._ask(replace(self._message, do="propose", step=step))
            if reports and all(each.accepts for each in reports):
                self._step, self._accepted, self._again = step, len(reports), _AGAIN
                return
            if not reports or self._stopped.is_set():  # a question was lost: the next look finds out the state
                self._ask(replace(self._message, do="drop", step=step))
                return
            furthest = max(at, *(each.at for each in reports))
            at, ahead = furthest, max(2 * ahead, 2 * (furthest - at))
        self._ask(replace(self._message, do="drop", step=step))
        self._may_agree = False
        logger.warning("the nodes could not agree on a step at which all save: the notice names none")

    def _ask(self, message: NoticeMessage) -> tuple[list[StepReport], int]:
        left = self._seconds_left()
        return self._ask_all(replace(message, seconds=left), max(0.1, min(_ANSWER_S, left / 5)))


_LATE_S = 3.0
"""A deadline later than that of a finished notice by no more than this may belong to the same notice, heard late."""


class PreemptionBoard:
    """What this node's workers are shown of a notice, and what they report. One per agent. Thread-safe.

    What was shown is cleared by the next start of the workers.
    """

    def __init__(self, workers: int, directory: str) -> None:
        """``workers`` is the number on this node; ``directory`` is the agent's own, for the file."""
        self._slots = range(FIRST, FIRST + WIDTH * workers, WIDTH)
        self._page = SharedNumbers("rdzv-notice", size_of(workers))
        self._size = size_of(workers)
        self._file = os.path.join(directory, "notice.json")
        self.lock = threading.RLock()
        """Whoever holds it knows that no other thread changes anything, and that no new start begins."""
        self._reason = ""
        self._proposed_at = 0.0

    def environment(self, start: int, round_: int, place: int) -> Mapping[str, str]:
        """Variables of a start for the worker with this place on the node; the first of a start clears the board."""
        with self.lock:
            if self._page[START] != start:
                self._clear(start, round_)
        where = f"{self._page.path},{self._size},{start},{self._slots[place]}"
        return {VARIABLE: where, FILE: self._file}

    def _clear(self, start: int, round_: int) -> None:
        self._page[NUMBER] = 0  # first: whoever looks meanwhile sees none
        for slot in self._slots:
            self._page[slot + AT], self._page[slot + SAVED] = -1, 0
        self._page[LIMIT] = self._page[DEADLINE] = self._page[NODE] = 0
        self._page[ROUND] = round_
        self._page[START] = start
        if os.path.exists(self._file):
            os.unlink(self._file)

    @property
    def round(self) -> int:
        """The number of the round in which workers were last started."""
        return self._page[ROUND]

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline of the notice; 0 without one, or when it has passed."""
        return max(0.0, (self._page[DEADLINE] - now_ns()) / 1e9) if self._page[NUMBER] else 0.0

    @property
    def agreed(self) -> int:
        """The step on which all have agreed, as far as this node knows; 0: none."""
        return max(0, int(self._page[LIMIT]))

    def show(self, message: NoticeMessage) -> bool:
        """Show the notice. True for a new one: there was none before in this round, or its time is over.

        The earlier deadline wins.
        """
        with self.lock:
            page = self._page
            deadline = now_ns() + int(message.seconds * 1e9)
            over = self.seconds_left == 0 and deadline > page[DEADLINE] + int(_LATE_S * 1e9)
            first = page[NUMBER] == 0 or over
            if not first and (message.do != "tell" or page[DEADLINE] <= deadline) and self.seconds_left > 0:
                return False
            if first:
                self._reason, page[NODE], page[LIMIT] = message.reason, message.node, 0
                for slot in self._slots:
                    page[slot + SAVED] = 0
            page[DEADLINE] = deadline
            self._write()
            page[NUMBER] += 1
            return first

    def propose(self, step: int) -> bool:
        """Show a step as proposed. False if a worker has passed it, or another one is already agreed on."""
        with self.lock:
            page = self._page
            if page[LIMIT] > 0:
                return page[LIMIT] == step
            accepts = self._at() < step
            if accepts:
                page[LIMIT], self._proposed_at = -step, time.monotonic()
                time.sleep(SEEN_S)
                accepts = self._at() < step
            if not accepts:
                page[LIMIT] = 0  # the answer may be lost: nothing that was refused may be agreed on
            return accepts

    def agree(self, step: int) -> bool:
        """All have agreed on the proposed step; False if another one was proposed, or it was too long ago."""
        with self.lock:
            if self._page[LIMIT] != -step or time.monotonic() >= self._proposed_at + VALID_S:
                return self._page[LIMIT] == step
            self._page[LIMIT] = step
            self._write()
            self._page[NUMBER] += 1
            return True

    def drop(self, step: int) -> None:
        with self.lock:
            if self._page[LIMIT] == -step:
                self._page[LIMIT] = 0

    def report(self, leaving: bool, accepts: bool) -> StepReport:
        """Which steps the workers say that they have done."""
        page, limit = self._page, max(0, self._page[LIMIT])
        told = [slot for slot in self._slots if page[slot + AT] >= 0 or page[slot + SAVED]]
        saved = [slot for slot in told if page[slot + SAVED]]
        return StepReport(page[ROUND], self._at(), limit, len(told) - len(saved), len(saved), leaving, accepts)

    def close(self) -> None:
        self._page[NUMBER] = 0
        self._page.close()

    def _at(self) -> int:
        """How far the furthest worker is; a worker may write anything."""
        return min(max(-1, *(self._page[slot + AT] for slot in self._slots)), MOST_STEPS - 1)

    def _write(self) -> None:
        """Write the file, so that it is complete whenever somebody looks."""
        page = self._page
        data = {
            "reason": self._reason,
            "deadline": time.time() + (page[DEADLINE] - now_ns()) / 1e9,
            "node": page[NODE],
            "round": page[ROUND],
            "step": max(0, page[LIMIT]) or None,
        }
        try:
            with open(f"{self._file}.new", "w") as file:
                json.dump(data, file)
            os.replace(f"{self._file}.new", self._file)
        except OSError as error:
            logger.warning("cannot write the notice file %s: %s", self._file, error.strerror)


_ROUND = "RDZV_ROUND"
_PER_RANK_S, _LONGEST_DELAY_S = 0.005, 0.3
"""If all nodes get their signal at once, most of them hear of the first notice before they would tell others."""
_TELL_S, _RETRY_S = 3.0, 1.0


class PreemptionNotices:
    """This node's part in notices. One per agent. Thread-safe."""

    def __init__(
        self,
        workers: int,
        directory: str,
        least: int,
        grace: float,
        put: Callable[[NoticeAnswered], None],
        signal_workers: Callable[[], None],
        questions: NodeRpc | None,
    ) -> None:
        """``workers`` is the number on this node; ``least``, the job's least number of nodes; ``grace``, this node's.

        ``signal_workers`` is called when there is a notice, on any thread. ``questions`` None: no other node is told.
        """
        self._board = PreemptionBoard(workers, directory)
        self._least, self._put, self._signal_workers = least, put, signal_workers
        self._grace, self._questions = grace, questions
        self._lock = threading.Lock()
        self._group: WorkerGroup | None = None
        self._leaving = False
        self._closed = threading.Event()
        self._too_late = 0
        """The step about which it was logged that this node heard of it too late."""
        self._told_in = 0
        """The start in which this node heard of another node's notice, or gave its own."""
        self._agreement: Agreement | None = None
        self._unheard = False
        """The last question was not delivered."""
        self._silent: set[int] = set()
        """The agents about which it was logged that they do not answer."""

    def environment(self, group: WorkerGroup, local_rank: int, variables: Mapping[str, str]) -> Mapping[str, str]:
        """Additional variables for a worker that is about to be started, and has these so far."""
        with self._board.lock:  # the agent of the new workers must not answer for the old round
            self._group = group
            return self._board.environment(group.generation, int(variables.get(_ROUND, group.generation)), local_rank)

    def give(self, reason: str, seconds: float) -> None:
        """Like ``give_notice`` of ``AgentLoop``."""
        group = self._group
        if group is not None:
            self._leaving = True
            message = NoticeMessage(self._board.round, group.group_rank, reason, seconds)
            OwnThread(target=self._give, args=(message, group), name="rdzv-notice").start()

    def answer(self, question: RpcRequest) -> Any:
        """Like ``questions.Answer``, for questions of the kind ``notice``. Raises ``ValueError``."""
        message = read_message(question.arguments)
        first = accepts = False
        with self._board.lock:
            group = self._group
            if message.round == self._board.round and group is not None:
                if message.node != group.group_rank or message.do != "tell":
                    self._told_in = group.generation
                first, accepts = self._hear(message)
            report = asdict(self._board.report(self._leaving, accepts))
        if first:
            self._signal_workers()
        return report

    def close(self) -> None:
        """End; workers no longer see any notice."""
        self._closed.set()
        with self._lock:
            if self._agreement is not None:
                self._agreement.stop()
        self._board.close()

    def _hear(self, message: NoticeMessage) -> tuple[bool, bool]:
        """Do what is asked in this round. Returns whether it is a new notice, and whether a step in it is accepted."""
        first = self._board.show(message)
        if first:
            logger.warning(
                "the job is about to lose node %d: %s; workers have %.0f s to save",
                message.node,
                message.reason,
                message.seconds,
            )
        self._see_to_agreement(message, first)
        match message.do:
            case "propose":
                return first, self._board.propose(message.step)
            case "agree":
                known = self._board.agreed
                if self._board.agree(message.step):
                    if known != message.step:
                        logger.info("telling all workers to save after step %d", message.step)
                    return first, True
                if self._too_late != message.step:
                    self._too_late = message.step
                    logger.warning("this node heard too late of step %d, at which all others save", message.step)
            case "drop":
                self._board.drop(message.step)
            case "over":
                if self._leaving:
                    self._put(NoticeAnswered(message.go_on, message.saved))
        return first, False

    def _see_to_agreement(self, message: NoticeMessage, first: bool) -> None:
        """Node rank 0 leads the agreement: without it there is no round, as it mostly serves the round's store."""
        with self._lock:
            group = self._group
            if group is None or (group.group_rank != 0 and self._questions is not None):
                return
            if self._agreement is not None and self._agreement.is_of(group.generation):
                if not first:
                    return
                self._agreement.stop()  # it was for a notice whose time is over
            may_agree = self._questions is not None or group.group_world_size == 1
            others = 0 if self._questions is not None else group.group_world_size - 1
            self._agreement = Agreement(
                message, group.generation, self._ask, lambda: self._board.seconds_left, self._least - others, may_agree
            )
            self._agreement.start()

    def _give(self, message: NoticeMessage, group: WorkerGroup) -> None:
        """Tell the workers here and the other nodes, among which node rank 0 takes over. Runs on its own thread."""
        until = now() + message.seconds
        with self._board.lock:
            told = self._told_in == group.generation and self._board.seconds_left > 0
            first, _ = self._hear(message)
        if first:
            self._signal_workers()
        warn_of_near_end(self._grace)
        if group.group_world_size == 1 or told:
            return
        if self._questions is None:
            logger.warning(
                "this backend cannot pass a notice on to other nodes: only the workers of this node are told, and no "
                "step is agreed on"
            )
            return
        time.sleep(min(group.group_rank * _PER_RANK_S, _LONGEST_DELAY_S))
        if self._told_in == group.generation:
            return
        while (left := until - now()) > 0 and self._group is group and not self._closed.is_set():
            answers = self._answers(replace(message, seconds=left), min(_TELL_S, left))
            if answers is not None and any(rank == 0 and report is not None for rank, report in answers):
                return  # node rank 0 tells those who have not heard of it yet
            self._closed.wait(min(_RETRY_S, left / 10))

    def _ask(self, message: NoticeMessage, timeout: float) -> tuple[list[StepReport], int]:
        """What the nodes of the round report, and how many more nodes the job has: spares, and those that are silent.

        Without anybody to carry the question it is what this node alone can say; if the service does not answer, no
        report, and as many nodes as the job needs at least.
        """
        if self._questions is None:
            return [checked(self.answer(RpcRequest("", NOTICE, asdict(message))), StepReport)], 0
        answers = self._answers(message, timeout)
        if answers is None:
            return [], self._least
        reports = [report for _, report in answers if report is not None]
        return reports, len(answers) - len(reports)

    def _answers(self, message: NoticeMessage, timeout: float) -> list[tuple[int | None, StepReport | None]] | None:
        """What each node of the job says, with its rank: None for a node that says nothing about this round.

        None in place of the whole list if the service does not answer.
        """
        assert self._questions is not None
        try:
            answers = self._questions.ask(NOTICE, asdict(message), timeout)
        except (RdzvError, TimeoutError) as error:
            if not self._unheard:
                logger.warning("could not tell the other nodes of the notice (trying again): %s", error)
            self._unheard = True
            return None
        self._unheard = False
        found: list[tuple[int | None, StepReport | None]] = []
        for each in answers:
            report = None
            try:
                report = checked(each.answer, StepReport)
            except ValueError:
                if each.node_rank is not None and each.pid not in self._silent:
                    self._silent.add(each.pid)
                    logger.warning(
                        "node %s on %s has not heard of the notice: %s", each.node_rank, each.host, each.problem
                    )
            is_of_round = report is not None and report.round == message.round
            found.append((each.node_rank, report if is_of_round else None))
        return found
