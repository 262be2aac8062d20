"""The agent's part in watching for hangs: without a time-out, it does nothing but answer those who ask."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rdzv_launcher.run.stacks.node import NodeStacks, Place
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.questions import STANDSTILL, Question, Questions, UnknownKind

if TYPE_CHECKING:
    from rdzv_launcher.run.hangs.watch import HangWatch
    from rdzv_plugins.progress_page import ProgressPage

logger = logging.getLogger(__name__)


class NodeHangs:
    """One agent's part in the watch for hangs. Thread-safe."""

    def __init__(
        self,
        timeout: float,
        workers: int,
        place: Callable[[], Place],
        stacks: NodeStacks,
        questions: Questions | None,
        on_hang: Callable[[int, Failure], None],
    ) -> None:
        """``timeout`` is in seconds; 0: hangs are not watched for. ``workers`` is the number of workers on this node.

        ``on_hang`` is called on a thread of the watch, with the generation of the workers and the worker that is
        different.
        """
        self._page: ProgressPage | None = None
        self._watch: HangWatch | None = None
        if timeout > 0:
            # most launches need neither
            from rdzv_launcher.run.hangs.watch import HangWatch
            from rdzv_plugins.progress_page import ProgressPage

            self._page = ProgressPage(workers)
            self._watch = HangWatch(timeout, place, self._told, stacks, questions, on_hang)
            self._watch.start()

    def environment(self, global_rank: int) -> dict[str, str]:
        """Additional variables for a worker that is about to be started."""
        return self._page.environment(global_rank) if self._page is not None else {}

    def close(self) -> None:
        """End the watch: whatever happens from now on is not a hang."""
        if self._watch is not None:
            self._watch.close()
        if self._page is not None:
            self._page.close()

    def _told(self, global_rank: int) -> int:
        return self._page.said_at(global_rank) if self._page is not None else 0

    def answer(self, question: Question) -> Any:
        """Like ``questions.Answer``, for the kinds ``standstill`` and ``hang``."""
        if self._watch is not None:
            return self._watch.answer(question)
        if question.kind == STANDSTILL:
            from rdzv_launcher.run.hangs.verdict import NodeStanding  # most launches do not need it

            return NodeStanding(-1, works=True, watches=False, workers={}).data()
        raise UnknownKind(question.kind)
