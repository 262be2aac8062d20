"""What the suite knows about one of pytest's items: its theme, its promise, its backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rdzv_plugins.testing.suite.ground import step_of
from rdzv_plugins.testing.suite.theme import Theme


def theme_of(item: pytest.Item) -> type[Theme] | None:
    """The theme that a test belongs to; None if it belongs to none."""
    cls = getattr(item, "cls", None)
    return cls if isinstance(cls, type) and issubclass(cls, Theme) else None


def ground_step(item: pytest.Item) -> int | None:
    """The step of a test on which all others build; None for those others."""
    return step_of(getattr(item, "function", None)) if theme_of(item) is not None else None


def promise_of(item: pytest.Item) -> str:
    """What a test is about: the first line of its docstring, or its name in words."""
    function = getattr(item, "function", None)
    words = (getattr(function, "__doc__", None) or "").strip().splitlines()
    if words:
        return str(words[0]).rstrip(".")
    return str(getattr(item, "originalname", item.name)).removeprefix("test_").replace("_", " ")


def facts_of(item: pytest.Item) -> list[str]:
    """Backend, theme, name and promise, which travel with the test's result."""
    theme = theme_of(item)
    return [_backend(item), theme.theme if theme else "", item.name, promise_of(item)]


def in_words(error: pytest.ExceptionInfo[BaseException]) -> str:
    """What an assert that has no message says: its expression as it is written, then the values; else empty.

    Without this, an author would be told ``assert 7 > 7``.
    """
    values = next(iter(str(error.value).splitlines()), "")
    if not isinstance(error.value, AssertionError) or (values and not values.startswith("assert ")):
        return ""
    place = error.traceback[-1]
    written = " ".join(str(place.statement).split()).removeprefix("assert ")
    found = values.removeprefix("assert ")
    where = f"{Path(str(place.path)).name}, line {place.lineno + 1}"
    return f"{written} does not hold{f': {found}' * bool(found and found != written)} ({where})"


def _backend(item: pytest.Item) -> str:
    """The backend of its harness; without one, the requested backend, or the file of the test."""
    harness: Any = getattr(item, "funcargs", {}).get("harness")
    return str(getattr(harness, "backend", "") or item.config.getoption("conformance_backend") or item.path.name)
