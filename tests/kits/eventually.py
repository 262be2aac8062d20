"""The one wait of tests for a state of the outside world that nobody can notify them of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 120
"""For all: who is late on a busy machine is not wrong, and who never comes may cost two minutes."""


def eventually(condition: Callable[[], Any], otherwise: Callable[[], object] = lambda: "it never came") -> Any:
    """What ``condition`` returns once that is true; fails with what ``otherwise`` says."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {otherwise()}"
        time.sleep(0.01)
    return value
