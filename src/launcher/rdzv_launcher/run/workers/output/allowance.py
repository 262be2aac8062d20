"""How much of a flood is shown: more than anybody reads, and little enough to cost next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

_BURST = 256 << 10
_RATE = 16 << 10
AT_ONCE = 16 << 10
"""How much of the newest output is shown, each time that this much may be shown again."""


class Allowance:
    """Bytes of one worker's stream: ``_BURST`` at first, and then ``_RATE`` per second. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left, self._at = float(_BURST), clock()

    def left(self) -> int:
        """How many bytes may be shown now; negative after more were shown."""
        now = self._clock()
        self._left = min(_BURST, self._left + (now - self._at) * _RATE)
        self._at = now
        return int(self._left)

    def take(self, count: int) -> None:
        """Note that ``count`` bytes are shown."""
        self._left -= count
