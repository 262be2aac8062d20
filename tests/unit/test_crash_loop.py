"""Which failures are the same one again, and what follows: notes of rounds in, verdicts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import Mock

import msgspec
import pytest

from rdzv_launcher.run.agent.events import RestartAllowed, RestartRefused
from rdzv_launcher.run.agent.restart_policy import (
    PROGRESS_S,
    FailureRecord,
    RestartLimits,
    RestartPolicy,
    delay_of,
    from_note,
    is_loop,
    spent,
)
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.runtime import SYSTEM

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


def failure(stderr: Sequence[str] = (), *, rank: int = 0, code: int = 1, hang: str = "") -> Failure:
    return replace(Failure(0, "here", rank, rank, 7, code, tuple(stderr)), hang=hang)


def ran(failed: Failure, seconds: float = 1.0) -> FailureRecord:
    return spent(failed, seconds)


SAME, OTHER = ran(failure(NAME)), ran(failure(VALUE))
LATE = ran(failure(NAME), PROGRESS_S)


@pytest.mark.parametrize(
    ("failed", "what"),
    [
        (failure(VALUE), "ValueError at /job/train.py:4"),
        (failure(OTHER_VALUE, rank=3), "ValueError at /job/train.py:4"),  # on whatever rank
        (failure(ELSEWHERE), "ValueError at /job/train.py:5"),
        (failure(NAME), "NameError at /job/train.py:4"),
        (failure(code=3, rank=2), "rank 2 ended with exit code 3"),
        (failure(code=-9, rank=2), "rank 2 ended with signal 9 (SIGKILL)"),
        (failure(VALUE, code=-9, rank=2), "rank 2 ended with signal 9 (SIGKILL)"),  # what it wrote is of earlier
        (failure(code=80, rank=1, hang="is at train.py:3 in step"), "rank 1 stood still"),
    ],
)
def test_what_tells_that_a_failure_is_the_same_again(failed: Failure, what: str) -> None:
    assert ran(failed) == FailureRecord(what, 1.0, of_the_text="NameError" in what)


@pytest.mark.parametrize(
    ("history", "kind", "loop"),
    [
        ([SAME] * 2, "any", False),
        ([SAME] * 3, "any", True),
        ([SAME] * 3, "off", False),
        ([SAME, OTHER, SAME, SAME], "any", False),
        ([OTHER, SAME, SAME, SAME], "any", True),
        ([SAME, LATE, SAME], "any", False),  # progress in between
        ([LATE, SAME, SAME], "any", True),  # what came before the first does not count
        # by default a restart may heal all but the text of the program
        ([SAME] * 3, "code", True),
        ([OTHER] * 9, "code", False),
    ],
)
def test_three_times_in_a_row_is_a_loop(history: list[FailureRecord], kind: str, loop: bool) -> None:
    assert is_loop(history, kind) == loop  # type: ignore[arg-type]


def test_the_delay_grows_after_the_second_restart_and_is_bounded() -> None:
    rounds = [ran(failure(code=number)) for number in range(1, 13)]
    assert [delay_of(rounds[:count], 1.0) for count in range(1, 13)] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert delay_of(rounds * 100, 1.0) == 60
    assert delay_of(rounds, 0.0) == 0
    assert delay_of(rounds, 90.0) == 90, "what the user asks for"
    assert delay_of([*rounds, LATE], 1.0) == 0


def test_a_note_of_any_node_is_read_or_is_like_no_other() -> None:
    note = ran(failure(VALUE), 2.5)
    assert from_note(msgspec.json.encode(note).decode()) == note
    for text in ("", "{}", "[]", "7", '{"what": 1, "ran": 1, "of_the_text": true}', "[" * 100000):
        assert from_note(text).made_progress
    assert not is_loop([from_note("{}")] * 5, "any")


def test_what_might_be_a_loop_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    failures = RestartPolicy(Mock(count_restart=Mock(return_value=None)), Mock(), RestartLimits(), 0.0, SYSTEM)
    for _ in range(5):
        assert isinstance(failures.decide(failure(VALUE), 1.0), RestartAllowed)
    assert caplog.text.count("crash_loop=any") == 1


@pytest.mark.parametrize("answer", [None, ConnectionLost("gone"), TimeoutError()])
def test_a_node_whose_rendezvous_counts_nothing_counts_its_own(answer: Exception | None) -> None:
    """What nodes count together is a story: ``simulation/test_agent_ends.py``."""
    handler = Mock(count_restart=Mock(side_effect=answer, return_value=None))
    failures = RestartPolicy(handler, Mock(), RestartLimits(job_restarts=5), 0.0, SYSTEM)
    answers = [failures.decide(failure(NAME), 1.0) for _ in range(3)]
    assert [type(each) for each in answers] == [RestartAllowed, RestartAllowed, RestartRefused]
