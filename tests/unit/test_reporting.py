"""When a node that waits says again what it waits for."""

import time

import pytest

from rdzv_plugins.reporting import Reporting


def due_at(monkeypatch: pytest.MonkeyPatch, seconds: int, **given: object) -> list[int]:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reporting = Reporting(**given)
    due = []
    for second in range(seconds):
        now = float(second)
        if reporting.is_due():
            due.append(second)
    return due


def test_every_ten_seconds(monkeypatch):
    assert due_at(monkeypatch, 45) == [10, 20, 30, 40]


def test_less_and_less_often_but_every_ten_minutes(monkeypatch):
    due = due_at(monkeypatch, 4000, first=1, grows=True)
    assert due[:5] == [1, 11, 31, 71, 151]
    assert {later - earlier for earlier, later in zip(due[-4:], due[-3:], strict=False)} == {600}
