"""When a node that waits says again what it waits for."""

from typing import Any

from rdzv_plugins.runtime import Runtime
from rdzv_plugins.timing import Reporting


def due_at(seconds: int, **given: Any) -> list[int]:
    now, runtime = 0.0, Runtime()
    runtime.monotonic = lambda: now  # type: ignore[assignment, method-assign]
    reporting = Reporting(**given, runtime=runtime)
    due = []
    for second in range(seconds):
        now = float(second)
        if reporting.is_due():
            due.append(second)
    return due


def test_every_ten_seconds():
    assert due_at(45) == [10, 20, 30, 40]


def test_less_and_less_often_but_every_ten_minutes():
    due = due_at(4000, first=1, grows=True)
    assert due[:5] == [1, 11, 31, 71, 151]
    assert {later - earlier for earlier, later in zip(due[-4:], due[-3:], strict=False)} == {600}
