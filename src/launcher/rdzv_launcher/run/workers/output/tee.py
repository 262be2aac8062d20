"""--tee: shows the workers' log files on our own streams while they grow, from one thread for all of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from rdzv_launcher.run.workers.output.filtered import FilteredFile
from rdzv_launcher.run.workers.output.tail import Tail
from rdzv_launcher.run.workers.output.view import View
from rdzv_plugins.threads import OwnThread

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.1
"""How late a line may be shown. Files cannot be waited for."""
_FLOOD_S = 0.4
"""The same while more arrives than is shown: each look costs, and nobody reads that fast."""


class Tee:
    """The files of one round. Used by the agent's thread.

    Workers wait for nobody: what our streams do not take stays in the files until they do.
    """

    def __init__(self, tails: Sequence[Tail], filtered: Sequence[FilteredFile], views: Sequence[View]) -> None:
        self._tails = list(tails)
        self._filtered = list(filtered)
        self._views = list(views)
        self._woken = threading.Event()
        self._stopping = self._given_up = False
        self._shown = 0
        self.complete = True
        """Whether nothing of the files was left out so far."""
        self._thread = OwnThread(target=self._run, name="rdzv-tee")
        if tails:
            self._thread.start()
        else:
            self._close()

    def stop(self, stuck: float, most: float) -> bool:
        """The workers have ended: show the rest. False if our streams did not take all of it.

        We give up on the streams when they take nothing for ``stuck`` seconds, and in any case after ``most`` seconds.
        """
        self._stopping = True
        self._woken.set()
        if self._thread.ident is not None:
            deadline, shown = time.monotonic() + most, -1
            while self._thread.is_alive() and shown != self._shown and time.monotonic() < deadline:
                shown = self._shown
                self._thread.join(stuck)
        self._given_up = True
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (self._tails or not self._all_written()) and not self._given_up:
                self._turn()
        except Exception:  # nothing in the job depends on this thread
            self.complete = False
            logger.exception("--tee met an error: no more is shown, the files are complete")
        finally:
            self._close()

    def _all_written(self) -> bool:
        return all(each.console.is_empty for each in self._views)

    def _close(self) -> None:
        for each in self._filtered:
            each.close()

    def _turn(self) -> None:
        """Give each file its turn; wait if none had anything."""
        self._woken.clear()
        stopping = self._stopping
        if stopping:
            for tail in self._tails:
                tail.stop_here()
        written = sum(each.console.written for each in self._views)
        moved = sum([tail.pump(self._woken.set) for tail in self._tails])
        if stopping:
            for tail in [each for each in self._tails if each.is_done]:
                self._tails.remove(tail)
                self.complete = self.complete and tail.complete
                tail.close()
        due = [each.show(final=not self._tails) for each in self._views]
        for each in self._views:
            each.console.has_room(self._woken.set)
        moved += sum(each.console.written for each in self._views) - written
        self._shown += moved
        if not moved and (self._tails or not self._all_written()):
            interval = _FLOOD_S if any(tail.floods for tail in self._tails) else _INTERVAL_S
            self._woken.wait(min([interval, *(each for each in due if each is not None)]))
