"""The ground: the few promises on which all others build. If one is broken, the others are not tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rdzv_plugins.testing.harness import Harness

Test = TypeVar("Test", bound=Callable[..., None])

_STEP, _FAULT = "conformance_step", "conformance_fault"
_broken: dict[int, tuple[Harness, str, str]] = {}
"""The first ground test that failed, as promise and fault, by ``id`` of its harness, which this keeps alive."""


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


def step_of(test: Any) -> int | None:
    """The step given to ``ground``; None for a test that is not of the ground."""
    return getattr(test, _STEP, None)


def fault_of(test: Any, error: BaseException) -> str:
    """The name of the fault through which a ground test failed."""
    if isinstance(error, Broken):
        return error.fault
    if isinstance(error, AssertionError) or not isinstance(error, Exception):  # pytest's own: over its limit
        return str(getattr(test, _FAULT))
    return f"it raises {type(error).__name__}"


def note_broken(harness: Harness, promise: str, fault: str) -> None:
    """Have everything that builds on the ground with that harness left untried in this process."""
    _broken.setdefault(id(harness), (harness, promise, fault))


def why_untried(harness: Harness) -> str:
    """Why a test that builds on the ground is not tried; empty if it is."""
    if id(harness) not in _broken:
        return ""
    _, promise, fault = _broken[id(harness)]
    return f"not tried: it builds on {promise!r}, which is broken ({fault})"
