"""Which failures are the same one again, and what follows: notes of rounds in, verdicts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rdzv_launcher.run.agent.crash_loop import PROGRESS_S, Spent, delay_of, from_note, in_a_row, is_loop, spent, to_note
from rdzv_launcher.run.agent.events import RestartAllowed, RestartRefused
from rdzv_launcher.run.agent.retries import Retries, RetryLimits
from rdzv_plugins.errors import ConnectionLost, CrashLoop
from rdzv_plugins.interfaces import Failure

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/job/train.py", line 9, in <module>',
    "    main()",
    '  File "/job/train.py", line 4, in main',
    "    step(1)",
)
NAME = (*TRACEBACK, "NameError: name 'step' is not defined")
VALUE = (*TRACEBACK, "ValueError: 17 at 0x7f8b0254d690")
OTHER_VALUE = (*TRACEBACK, "ValueError: 18 at 0x7f62c2f6d5d0")
ELSEWHERE = (*TRACEBACK[:-2], '  File "/job/train.py", line 5, in main', "    stop()", "ValueError: 17")


def failure(stderr: Sequence[str] = (), *, rank: int = 0, code: int = 1) -> Failure:
    return Failure(0, "here", rank, rank, 7, code, tuple(stderr))


def history(*each: tuple[Failure, float]) -> list[Spent]:
    return [spent(failed, ran) for failed, ran in each]


def test_the_same_failure_is_told_by_exception_and_last_frame_on_whatever_rank() -> None:
    assert spent(failure(VALUE, rank=0), 1.0).what == spent(failure(OTHER_VALUE, rank=3), 1.0).what
    assert spent(failure(VALUE), 1.0).what == "ValueError at /job/train.py:4"
    assert spent(failure(ELSEWHERE), 1.0).what != spent(failure(VALUE), 1.0).what
    assert spent(failure(NAME), 1.0).what != spent(failure(VALUE), 1.0).what
    assert spent(failure(NAME), 1.0).of_the_text
    assert not spent(failure(VALUE), 1.0).of_the_text


def test_without_a_traceback_the_rank_tells() -> None:
    assert spent(failure(code=3, rank=2), 1.0).what == "rank 2 ended with exit code 3"
    assert spent(failure(code=-9, rank=2), 1.0).what == "rank 2 ended with signal 9 (SIGKILL)"
    assert spent(failure(VALUE, code=-9, rank=2), 1.0).what == "rank 2 ended with signal 9 (SIGKILL)", "of earlier"


def test_a_hang_is_told_by_the_rank_that_is_different() -> None:
    hung = replace(
        failure(code=80), hang="is at train.py:3 in step, and no worker of the job has made progress for 9 s"
    )
    assert spent(hung, 1.0) == Spent(f"rank {hung.global_rank} stood still", 1.0)


def test_three_times_in_a_row_is_a_loop() -> None:
    same = (failure(NAME), 1.0)
    assert [in_a_row(history(*[same] * times)) for times in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert not is_loop(history(same, same), "any")
    assert is_loop(history(same, same, same), "any")
    assert not is_loop(history(same, same, same), "off")
    assert not is_loop(history(same, (failure(VALUE), 1.0), same, same), "any"), "another one came in between"
    assert is_loop(history((failure(VALUE), 1.0), same, same, same), "any")


def test_progress_in_between_makes_it_no_loop() -> None:
    soon, late = (failure(NAME), 1.0), (failure(NAME), PROGRESS_S)
    assert not is_loop(history(soon, soon, late), "any")
    assert not is_loop(history(soon, late, soon), "any")
    assert is_loop(history(late, soon, soon), "any"), "what came before the first does not count"


def test_by_default_a_restart_may_heal_all_but_the_text_of_the_program() -> None:
    assert is_loop(history(*[(failure(NAME), 1.0)] * 3), "code")
    assert not is_loop(history(*[(failure(VALUE), 1.0)] * 9), "code")
    assert not is_loop(history(*[(failure(code=-9), 1.0)] * 9), "code")
    assert not is_loop(history(*[(failure(code=1), 1.0)] * 9), "code")


def test_the_delay_grows_after_the_second_restart_and_is_bounded() -> None:
    rounds = [(failure(code=number), 1.0) for number in range(1, 13)]
    delays = [delay_of(history(*rounds[:count]), 1.0) for count in range(1, 13)]
    assert delays == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert delay_of(history(*rounds * 100), 1.0) == 60
    assert delay_of(history(*rounds), 0.0) == 0
    assert delay_of(history(*rounds), 90.0) == 90, "what the user asks for"
    assert delay_of(history(*rounds, (failure(code=1), PROGRESS_S)), 1.0) == 0


def test_a_note_of_any_node_is_read_or_is_like_no_other() -> None:
    note = spent(failure(VALUE), 2.5)
    assert from_note(to_note(note)) == note
    for text in ("", "{}", "[]", "7", '{"what": 1, "ran": 1, "of_the_text": true}', "[" * 100000):
        assert from_note(text).made_progress
    assert not is_loop([from_note("{}")] * 5, "any")


class Counted:
    """A rendezvous: what other nodes have noted comes with this node's."""

    def __init__(self, others: Sequence[Spent] = (), *, error: Exception | None = None, none: bool = False) -> None:
        self.notes = [to_note(each) for each in others]
        self._error, self._none = error, none

    def count_restart(self, note: str) -> Sequence[str] | None:
        if self._error is not None:
            raise self._error
        self.notes.append(note)
        return None if self._none else self.notes


def test_the_budget_of_the_job_is_that_of_all_nodes() -> None:
    others = history((failure(code=3), 1.0))
    assert Retries(RetryLimits(job_restarts=2), Counted(others)).decide(failure(code=4), 1.0) == RestartAllowed()
    refused = Retries(RetryLimits(job_restarts=1), Counted(others)).decide(failure(code=4), 1.0)
    assert isinstance(refused, RestartRefused)
    assert refused.exit_code == 0
    assert "job_restarts=1" in refused.why
    assert isinstance(Retries(RetryLimits(job_restarts=0), Counted()).decide(failure(), 1.0), RestartRefused)


def test_a_loop_of_the_job_ends_it_with_a_code_of_its_own() -> None:
    others = history((failure(NAME), 1.0), (failure(NAME), 1.0))
    refused = Retries(RetryLimits(), Counted(others)).decide(failure(NAME, rank=5), 1.0)
    assert isinstance(refused, RestartRefused)
    assert refused.exit_code == CrashLoop.exit_code == 82
    assert "3 times in a row NameError at /job/train.py:4" in refused.why
    assert isinstance(
        Retries(RetryLimits(crash_loop="off"), Counted(others)).decide(failure(NAME), 1.0), RestartAllowed
    )


def test_what_might_be_a_loop_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries(RetryLimits(), Counted())
    for _ in range(5):
        assert isinstance(retries.decide(failure(VALUE), 1.0), RestartAllowed)
    assert caplog.text.count("crash_loop=any would end the job now") == 1
    assert "3 times in a row ValueError at /job/train.py:4" in caplog.text


@pytest.mark.parametrize(
    "rendezvous", [Counted(none=True), Counted(error=ConnectionLost("gone")), Counted(error=TimeoutError())]
)
def test_a_node_whose_rendezvous_counts_nothing_counts_its_own(rendezvous: Counted) -> None:
    retries = Retries(RetryLimits(job_restarts=5), rendezvous)
    answers = [retries.decide(failure(NAME), 1.0) for _ in range(3)]
    assert [type(each) for each in answers] == [RestartAllowed, RestartAllowed, RestartRefused]
