"""What an agent that has ended leaves behind, besides its workers."""

from __future__ import annotations

import signal
import time

from rdzv_launcher.run.keeper.marked import Marked
from rdzv_launcher.run.keeper.messages import Belongings
from rdzv_launcher.run.run_directory import remove

_LOOK_S = 0.05
_QUIET_LOOKS = 5
"""How many looks must find nothing: a process that is just starting shows its environment a moment later."""
_LONGEST_PAUSE_S = 2.0
_PATIENCE_S = 600.0
"""A process that is stuck in the kernel may never end."""


def clear(belongings: Belongings) -> None:
    """End everything that carries the agent's mark, until nothing is left, and remove its temporary files."""
    if belongings.mark:
        marked = Marked(belongings.mark)
        quiet, pause, deadline = 0, _LOOK_S, time.monotonic() + _PATIENCE_S
        while quiet < _QUIET_LOOKS and time.monotonic() < deadline:
            if marked.signal(signal.SIGKILL):
                quiet, pause = 0, min(2 * pause, _LONGEST_PAUSE_S)
            else:
                quiet, pause = quiet + 1, _LOOK_S
            time.sleep(pause)
    if belongings.directory:
        remove(belongings.directory)
