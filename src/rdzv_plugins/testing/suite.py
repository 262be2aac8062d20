"""The base of all themes: what every test may ask of the backend under test, and what the report knows of it.

The *ground* are the few promises on which all others build. If one is broken, the others are not tried.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.registry.catalog import Entry
from rdzv_plugins.testing.harness import Harness, entry, takes

GAP = "rdzv_gap"
"""The name of the property by which a test reports a gap."""
UNTRIED = "rdzv_untried"
"""The name of the property of a test that was not tried, because what it builds on is broken."""

_BUILDS, _STEP, _FAULT = "conformance_builds_on_ground", "conformance_step", "conformance_fault"
_broken: dict[int, tuple[Harness, str]] = {}
"""Why the tests of a harness are not tried, by its ``id``; this keeps it alive."""

Test = TypeVar("Test", bound=Callable[..., None])


class Broken(AssertionError):
    """A promise of the ground is broken; ``fault`` is what the verdict calls that."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def ground(step: int, fault: str) -> Callable[[Test], Test]:
    """Mark a test of the ground, which runs before those of a higher ``step`` and all others.

    ``fault`` is what the verdict calls a backend that fails it: ``it hangs``.
    """

    def decorate(test: Test) -> Test:
        setattr(test, _STEP, step)
        setattr(test, _FAULT, fault)
        return test

    return decorate


def on_ground(test: Test) -> Test:
    """Mark a test that is not tried if the ground is broken, in a theme whose other tests are."""
    setattr(test, _BUILDS, True)
    return test


def gap_if(reason: Callable[..., str]) -> Callable[[Test], Test]:
    """Mark a test of something that not every backend promises: where ``reason`` says why not, it is a gap."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(self: Theme, *args: Any, **fixtures: Any) -> None:
            if why := reason(self, *args, **fixtures):
                self.gap(why)
            else:
                test(self, *args, **fixtures)

        return run  # type: ignore[return-value]  # it is called as the test would be

    return decorate


class Theme:
    """A theme of the conformance suite. Subclass one of those below as ``class TestSomething(ThatTheme)``."""

    theme: ClassVar[str] = ""
    """The theme's name in the report."""
    builds_on_ground: ClassVar[bool] = True
    """Whether its tests are skipped while ``create`` or its calls do not even work: they would mean nothing."""

    harness: Harness
    """The backend under test, once a test is set up."""
    directory: Path
    """An empty one for each test."""

    @pytest.fixture(autouse=True)
    def _on_ground(self, harness: Harness, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        """Leave the test out if the ground is broken: the cause is reported once, without its consequences."""
        self.harness, self.directory, self._request = harness, tmp_path, request
        builds = getattr(request.function, _BUILDS, self.builds_on_ground)
        if builds and id(harness) in _broken:
            why = _broken[id(harness)][1]
            request.node.user_properties.append((UNTRIED, why))
            pytest.skip(why)

    @property
    def entry(self) -> Entry:
        """The backend under test as the plug-in host finds it. Raises what a launch would."""
        return entry(self.harness.backend)

    def declares(self, capability: Capability) -> bool:
        return capability in self.entry.backend.capabilities

    def accepts(self, option: str) -> bool:
        return takes(self.harness, option)

    def gap(self, why: str) -> None:
        """Report something that the backend does not promise, and that it was refused as it should be.

        A test that ends like this has passed; one that was not even tried says ``not tried: `` and why.
        """
        self._request.node.user_properties.append((GAP, why))


def theme_of(item: pytest.Item) -> type[Theme] | None:
    """The theme that a test belongs to; None if it belongs to none."""
    cls = getattr(item, "cls", None)
    return cls if isinstance(cls, type) and issubclass(cls, Theme) else None


def ground_step(item: pytest.Item) -> int | None:
    """The step of a test on which all others build; None for those others."""
    step: int | None = getattr(getattr(item, "function", None), _STEP, None)
    return step if theme_of(item) is not None else None


def note_broken(item: pytest.Item, error: BaseException) -> str:
    """Have all that builds on this test of the ground left untried in this process; returns the fault's name."""
    if isinstance(error, Broken):
        fault = error.fault
    elif isinstance(error, AssertionError) or not isinstance(error, Exception):  # pytest's own: over its limit
        fault = str(getattr(getattr(item, "function", None), _FAULT))
    else:
        fault = f"it raises {type(error).__name__}"
    harness = getattr(item, "funcargs", {}).get("harness")
    if harness is not None:
        why = f"not tried: it builds on {promise_of(item)!r}, which is broken ({fault})"
        _broken.setdefault(id(harness), (harness, why))
    return fault


def promise_of(item: pytest.Item) -> str:
    """What a test is about: the first line of its docstring, or its name in words."""
    words = (getattr(getattr(item, "function", None), "__doc__", None) or "").strip().splitlines()
    if words:
        return str(words[0]).rstrip(".")
    return str(getattr(item, "originalname", item.name)).removeprefix("test_").replace("_", " ")


def facts_of(item: pytest.Item) -> dict[str, str]:
    """The fields of a ``TestResult`` by which a test is known, which travel with its result.

    Without a harness the backend is the requested one, or the file of the test.
    """
    harness: Any = getattr(item, "funcargs", {}).get("harness")
    backend = getattr(harness, "backend", "") or item.config.getoption("conformance_backend") or item.path.name
    theme = theme_of(item)
    facts = {"backend": str(backend), "theme": theme.theme if theme else "", "key": item.nodeid}
    return facts | {"name": item.name, "promise": promise_of(item)}


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
    return f"{written} is not true{f': {found}' * bool(found and found != written)} ({where})"
