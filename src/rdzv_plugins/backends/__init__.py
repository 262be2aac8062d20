"""The backends that ship with the project: each is independent, and found like any third-party one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def later(module: str, function: str) -> Callable[..., Any]:
    """A function of a module that is imported when it is called: whoever only lists backends does without."""
    return lambda *arguments: getattr(import_module(module), function)(*arguments)
