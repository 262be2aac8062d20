"""Notices without processes: what workers see and wait for, what agents agree on, and what they make of nonsense."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from rdzv_launcher.python_api import launching
from rdzv_launcher.python_api.agent import LaunchAnswer
from rdzv_launcher.python_api.config import LaunchConfig
from rdzv_launcher.python_api.launching import RelayedSignals
from rdzv_launcher.python_api.results import LaunchStopped
from rdzv_launcher.run.options import RunOptions
from rdzv_launcher.run.preemption import node as node_module
from rdzv_launcher.run.preemption.node import (
    Agreement,
    NoticeMessage,
    PreemptionBoard,
    PreemptionNotices,
    StepReport,
    read_message,
)
from rdzv_launcher.run.preemption.settings import read_notice
from rdzv_launcher.run.supervisor import supervisor_process
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins import preemption
from rdzv_plugins.errors import ConnectionLost, Preempted, UsageError
from rdzv_plugins.preemption import AT, FIRST, notice, saved
from rdzv_plugins.questions import NOTICE, RpcRequest, RpcResponse, checked
from rdzv_plugins.schedulers.facts import time_until_end, told_grace
from rdzv_plugins.shared_numbers import open_numbers

WORD = NoticeMessage(round=1, node=2, reason="it goes", seconds=60.0)


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PreemptionBoard]:
    """One whose worker is this process."""
    open_numbers.cache_clear()  # a descriptor's number may be used again
    made = PreemptionBoard(2, str(tmp_path))
    for name, value in made.environment(1, 1, 0).items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


def test_a_step_is_a_count_and_outside_of_a_launch_there_is_no_notice(
    board: PreemptionBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (-1, 2**62, 1.5):
        with pytest.raises((ValueError, TypeError)):
            notice(step=step)  # type: ignore[arg-type]
    monkeypatch.delenv("RDZV_NOTICE")
    assert (notice(), notice(step=3)) == (None, None)
    saved()


def test_a_worker_sees_what_is_shown(board: PreemptionBoard) -> None:
    assert notice() is None
    assert board.show(WORD)
    assert not board.show(replace(WORD, node=1)), "the first one stays"
    told = notice()
    assert told is not None
    assert (told.reason, told.node, told.round, told.step) == ("it goes", 2, 1, None)
    assert 55 < told.deadline - time.monotonic() <= 60
    assert notice() is told, "nothing has changed"
    board.show(replace(WORD, seconds=9.0))
    told = notice()
    assert told is not None
    assert told.deadline - time.monotonic() <= 9, "the earlier time is the one that counts"
    file = json.loads(Path(os.environ["RDZV_NOTICE_FILE"]).read_text())
    assert (file["reason"], file["node"], file["round"], file["step"]) == ("it goes", 2, 1, None)
    assert 0 < file["deadline"] - time.time() <= 9
    board.environment(2, 2, 0)
    assert notice() is None, "a new start knows nothing of it"
    assert not os.path.exists(os.environ["RDZV_NOTICE_FILE"])
    board.show(replace(WORD, round=2))
    assert notice() is None, "this worker belongs to the start before"


def test_no_worker_is_past_a_step_that_is_agreed_on(board: PreemptionBoard) -> None:
    notice(step=5)
    board.show(WORD)
    assert not board.propose(5), "it has done that"
    assert board.propose(6)
    assert not board.agree(7), "another one was proposed"
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(notice(step=6)), daemon=True)
    worker.start()
    worker.join(0.05)
    assert not found, "it waits for the decision"
    assert board.agree(6)
    worker.join(60)
    assert found[0].step == 6
    assert not board.propose(8), "it stays"
    assert json.loads(Path(os.environ["RDZV_NOTICE_FILE"]).read_text())["step"] == 6


def test_a_worker_that_could_not_see_a_proposal_yet_is_seen(
    board: PreemptionBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written where it is, and read that there is no proposal, at the very moment that there is one."""
    notice(step=5)
    board.show(WORD)
    still = SimpleNamespace(sleep=lambda _: board._page.__setitem__(FIRST + AT, 6), monotonic=time.monotonic)
    monkeypatch.setattr(node_module, "time", still)
    assert not board.propose(6)
    assert not board.agree(6), "nor is it agreed to where the answer was lost"


@pytest.mark.parametrize("how", ["drop", "later", "nobody"])
def test_a_worker_goes_on_when_nothing_comes_of_a_proposal(
    board: PreemptionBoard, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(preemption, "HOLD_S", 0.05 if how == "nobody" else 60)
    monkeypatch.setattr(node_module, "VALID_S", 0.0)
    board.show(WORD)
    assert board.propose(3)
    worker = threading.Thread(target=lambda: notice(step=3), daemon=True)
    worker.start()
    if how == "drop":
        board.drop(3)
    elif how == "later":
        while not board.propose(9):
            pass
    worker.join(60)
    assert not worker.is_alive()
    told = notice()
    assert told is not None
    assert told.step is None
    assert not board.agree(9 if how == "later" else 3), "it is an old one, or none"


@pytest.mark.parametrize(
    ("does", "report"),
    [
        ([], StepReport(1, -1, 0, 0, 0, False, True)),  # nobody has said anything
        ([2], StepReport(1, 2, 0, 1, 0, False, True)),
        ([2, "agree 4", 4], StepReport(1, 4, 4, 1, 0, False, True)),  # it is at it
        ([2, "agree 4", 4, 5], StepReport(1, 5, 4, 0, 1, False, True)),
        ([2, "agree 3", 12, 22], StepReport(1, 22, 3, 1, 0, False, True)),  # it has jumped over the step
        ([2, "saved"], StepReport(1, 2, 0, 0, 1, False, True)),  # saying so is enough
    ],
)
def test_who_has_saved(board: PreemptionBoard, does: list[Any], report: StepReport) -> None:
    board.show(WORD)
    for each in does:
        if each == "saved":
            saved()
        elif isinstance(each, str):
            step = int(each.split()[1])
            assert board.propose(step)
            assert board.agree(step)
        else:
            notice(step=each)
    told = notice()
    assert told is not None
    assert told.step == (report.agreed or None)
    assert board.report(False, True) == report


def test_a_notice_after_one_whose_time_is_over_is_a_new_one(
    board: PreemptionBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_LATE_S", 30.0)
    notice(step=2)
    board.show(replace(WORD, seconds=0.0))
    board.propose(3)
    board.agree(3)
    saved()
    assert not board.show(replace(WORD, node=1, seconds=1.0)), "the same one, heard late"
    board.show(replace(WORD, seconds=0.0))
    assert board.show(replace(WORD, node=1, reason="it goes, too"))
    told = notice()
    assert told is not None
    assert (told.reason, told.node, told.step) == ("it goes, too", 1, None)
    assert board.report(False, True).saved == 0
    assert board.propose(4)


@pytest.mark.parametrize(
    "change",
    [{"node": True}, {"seconds": float("nan")}, {"seconds": 1e9}, {"do": "propose", "step": 0}, {"step": 2**62}],
)
def test_nonsense_is_no_word_and_no_report(change: dict[str, Any]) -> None:
    assert read_message(asdict(WORD)) == WORD
    with pytest.raises(ValueError, match="n"):
        read_message(asdict(WORD) | change)
    with pytest.raises(ValueError, match="Report"):
        checked(asdict(StepReport(1, 2, 0, 0, 0, False, False)) | {"at": -2}, StepReport)


class Job:
    """Nodes as an ``Agreement`` sees them: where their workers are, and what they were asked."""

    def __init__(self, *at: int, per_question: int = 0, faster: int = 1, leaving: bool = True) -> None:
        self.at, self.per_question, self.faster = list(at), per_question, faster
        self.deaf: dict[str, int] = {}
        """So many more questions of a kind the last node does not answer, nor hear."""
        self.lost: dict[str, int] = {}
        """So many more of a kind nobody does."""
        self.knows = 0
        """The step of which the last node has heard."""
        self.words: list[NoticeMessage] = []
        self.agreed = 0
        self.saved = False
        self.leaving = [leaving] + [False] * (len(at) - 1)

    def lead(self, until: Callable[[], object], *, least: int = 1, may_agree: bool = True) -> None:
        """Node rank 0 asks them until that is so; its pauses are as short as the time that is left."""
        asked = len(self.words)
        left = lambda: 0.0 if until() or len(self.words) - asked > 500 else 0.001  # noqa: E731
        Agreement(WORD, 1, self.ask, left, least, may_agree).run()
        assert until()

    def ask(self, word: NoticeMessage, timeout: float) -> tuple[list[StepReport], int]:
        self.words.append(word)
        self.at = [each + self.per_question for each in self.at]
        self.per_question *= self.faster
        if self.lost.get(word.do, 0) > 0:
            self.lost[word.do] -= 1
            return [], 1
        deaf = self.deaf.get(word.do, 0) > 0
        if deaf:
            self.deaf[word.do] -= 1
        if word.do == "agree":
            self.agreed = word.step
            self.knows = self.knows if deaf else word.step
        accepts = [word.do != "propose" or each < word.step for each in self.at]
        waiting = 0 if self.saved else 1
        reports = [
            StepReport(1, at, self.agreed, waiting, 1 - waiting, leaving, accepted)
            for at, leaving, accepted in zip(self.at, self.leaving, accepts, strict=True)
        ]
        reports[-1] = replace(reports[-1], agreed=self.knows)
        return reports[: len(reports) - deaf], int(deaf)

    def does(self, kind: str) -> list[NoticeMessage]:
        return [word for word in self.words if word.do == kind]

    def steps(self, kind: str) -> list[int]:
        return [word.step for word in self.does(kind)]

    def is_over(self) -> bool:
        """The nodes were told that all have saved."""
        return any(word.saved for word in self.does("over"))


def test_the_step_is_the_next_one_and_all_are_told_when_they_have_saved() -> None:
    job = Job(4, 5, -1)
    job.lead(lambda: job.does("over"))
    assert job.steps("propose") == job.steps("agree") == [6]
    assert not job.is_over()
    job.saved = True
    job.lead(job.is_over)
    assert all(word.go_on for word in job.does("over"))


def test_steps_may_be_faster_than_questions_up_to_a_limit() -> None:
    job = Job(4, 5, per_question=20)
    job.lead(lambda: job.does("agree"))
    tried = job.steps("propose")
    assert [after - before for before, after in pairwise(tried)] == [59], "20 in each question: 40 ahead in the next"
    assert job.steps("agree")[0] == tried[-1]
    never = Job(4, 5, per_question=1, faster=4)
    never.lead(lambda: never.does("drop"))
    assert not never.does("agree")


def test_who_is_not_heard_of_may_be_saving_still_and_is_told_again() -> None:
    job = Job(4, 5, 5)
    job.deaf = {"agree": 2}
    job.lead(lambda: job.knows)
    assert job.knows == job.agreed == 6
    saving = Job(4, 5, 5)

    def over() -> bool:
        if saving.does("over") and not saving.saved:
            saving.deaf["tell"], saving.saved = 8, True  # on the two that answer
        return saving.is_over()

    saving.lead(over)
    assert saving.deaf["tell"] == 0, "it was waited for"


def test_a_lost_question_is_not_the_end_of_it() -> None:
    job = Job(4, 5)
    job.lost = {"propose": 1, "agree": 2}
    job.lead(lambda: job.does("over"))
    assert job.agreed == 6
    assert job.steps("propose") == [6, 6], "no other step is proposed after one was agreed on"
    assert len(job.does("agree")) == 3


def test_nothing_is_agreed_on_while_nobody_leaves_or_not_all_can_be_asked() -> None:
    job = Job(4, 5, leaving=False)
    job.lead(lambda: len(job.does("tell")) >= 5)
    assert not job.does("propose")
    assert not job.does("over")
    job.leaving[1] = True
    job.lead(lambda: job.does("agree"))
    few = Job(4, 5)
    few.lead(lambda: few.does("over"), least=2, may_agree=False)
    assert not few.does("over")[0].go_on, "too few are left"
    assert not few.does("propose")


def notices_of(directory: Path, ask: Callable[..., list[RpcResponse]], heard: list[Any]) -> PreemptionNotices:
    """Of a node with two workers, in whose round 7 they have been started."""
    questions: Any = SimpleNamespace(ask=ask)
    made = PreemptionNotices(1, str(directory), 1, 0.0, heard.append, lambda: heard.append("signal"), questions)
    assert made.answer(RpcRequest("", NOTICE, asdict(WORD)))["round"] == 0, "before the first start"
    group = WorkerGroup(1, 2, (Worker(0, 1, 1, 2, 2),), generation=1)
    made.environment(group, 0, {"RDZV_ROUND": "7"})
    return made


def test_a_notice_of_another_round_changes_nothing(tmp_path: Path) -> None:
    heard: list[Any] = []
    node = notices_of(tmp_path, lambda *_: [RpcResponse(0, "h", 1, problem="has left")], heard)
    node.answer(RpcRequest("", NOTICE, asdict(WORD)))
    node.answer(RpcRequest("", NOTICE, asdict(replace(WORD, round=7, do="over", go_on=False, saved=True))))
    assert heard == ["signal"], "of its own round; and it does not leave because others say that they do"
    with pytest.raises(ValueError, match="NoticeMessage"):
        node.answer(RpcRequest("", NOTICE, {"do": "agree"}))
    node.close()


def test_a_node_tells_of_its_notice_until_node_rank_0_has_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdzv_launcher.run.preemption.node._RETRY_S", 0.01)
    asked: list[NoticeMessage] = []
    zero = StepReport(7, -1, 0, 0, 0, False, False)
    of_others = [RpcResponse(0, "h", 1, problem="is silent"), RpcResponse(2, "h", 3, answer=asdict(zero))]
    answers = [of_others, [RpcResponse(0, "h", 1, answer=asdict(replace(zero, round=6)))]]

    def ask(kind: str, arguments: Any, timeout: float) -> list[RpcResponse]:
        asked.append(read_message(arguments))
        if len(asked) == 1:
            raise ConnectionLost("for a moment")
        return answers.pop(0) if answers else [RpcResponse(0, "h", 1, answer=asdict(zero))]

    node = notices_of(tmp_path, ask, [])
    node.give("it goes", 60.0)
    for thread in threading.enumerate():
        if thread.name == "rdzv-notice":
            thread.join(30)
    assert len(asked) == 4, "and no more"
    assert all(before.seconds > after.seconds for before, after in pairwise(asked)), "it is said how much is left"
    node.close()


@pytest.mark.parametrize("name", ["SIGRTMIN", "XCPU", "WINCH", "ALRM", "CHLD"])
def test_what_would_kill_the_processes_beside_the_agent_is_no_notice(name: str) -> None:
    with pytest.raises(UsageError, match=f"SIG{name.removeprefix('SIG')} cannot be used"):
        read_notice(RunOptions(preempt_grace=60.0, notice_signals=f"TERM,{name}"))
    told = read_notice(RunOptions(preempt_grace=60.0, notice_signals="HUP,INT,QUIT,TERM,USR1,USR2")).signals
    assert {*told} <= {*supervisor_process.DEAF_TO}, "all others ignore what is a notice"
    read_notice(RunOptions(), [signal.SIGALRM])
    with pytest.raises(UsageError, match="SIGALRM"):  # the alarm of the grace
        read_notice(RunOptions(preempt_grace=60.0), [signal.SIGALRM])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (LaunchAnswer(error=Preempted("it was preempted"), notices=(signal.SIGTERM,)), Preempted),
        (LaunchAnswer(notices=(signal.SIGTERM,)), None),
        (LaunchAnswer(signal=signal.SIGINT, notices=(signal.SIGTERM,)), KeyboardInterrupt),
        (LaunchAnswer(), LaunchStopped),
    ],
)
def test_a_call_that_got_a_notice_ends_as_the_launch_did(
    tmp_path: Path, answer: LaunchAnswer, error: type[BaseException] | None
) -> None:
    launch = launching._Launch(LaunchConfig(1, 1, 1), "program", str(tmp_path))
    agent: Any = SimpleNamespace(answer=lambda: answer, pid=1)
    with pytest.raises(error) if error else contextlib.nullcontext():
        assert launch._read(agent, signal.SIGTERM) == {}


def test_a_call_passes_on_what_is_a_notice() -> None:
    relayed = RelayedSignals("SIGTERM,SIGINT", "USR1,TERM")
    before = signal.getsignal(signal.SIGUSR1)
    with relayed.handled():
        signal.raise_signal(signal.SIGUSR1)
    assert relayed.arrived is signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is before
    with pytest.raises(UsageError, match="--notice-signals"):
        RelayedSignals("SIGTERM", "NONE")


@pytest.mark.parametrize(
    ("conf", "told"),
    [("ClusterName=a\n killwait = 45 # s\n", 45), ("#KillWait=45\n", 30), ("KillWait=x", 30), (None, None)],
)
def test_what_a_scheduler_tells(tmp_path: Path, conf: str | None, told: int | None) -> None:
    given = "TERMINATION_GRACE_PERIOD_SECONDS"
    assert told_grace({}) is told_grace({given: "soon"}) is None
    assert str(told_grace({given: "30"})) == f"{given}=30"
    ends = [time_until_end({"SLURM_JOB_END_TIME": each}, 2000.0) for each in ("1000", "2100")]
    assert [each and each.value for each in ends] == [None, 100]
    file = tmp_path / "slurm.conf"
    if conf is not None:
        file.write_text(conf)
    found = told_grace({"SLURM_STEP_ID": "0", "SLURM_CONF": str(file)})
    assert (found.value if found else None) == told
    assert found is None or found.source == f"KillWait in {file}"
    assert told_grace({"SLURM_STEP_ID": "0", "SLURM_CONF": str(file)}, by_sigterm=False) is None
    assert told_grace({"SLURM_CONF": str(file)}) is None, "not in a step"
