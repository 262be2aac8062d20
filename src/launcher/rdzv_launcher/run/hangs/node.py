"""The agent's part in watching for hangs: nothing without a time-out, but an answer to who asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rdzv_launcher.run.hangs.place import Place
from rdzv_launcher.run.stacks.node import NodeStacks
from rdzv_plugins.interfaces import Failure
from rdzv_plugins.progress_page import ProgressPage
from rdzv_plugins.questions import STANDSTILL, Question, Questions, UnknownKind

if TYPE_CHECKING:
    from rdzv_launcher.run.hangs.watch import HangWatch

logger = logging.getLogger(__name__)


class NodeHangs:
    """The watch for hangs as one agent takes part in it. Thread-safe."""

    def __init__(
        self,
        timeout: float,
        workers: int,
        place: Callable[[], Place],
        stacks: NodeStacks,
        questions: Questions | None,
        on_hang: Callable[[int, Failure], None],
    ) -> None:
        """``timeout`` in seconds, 0: hangs are not watched for. ``workers`` are those of this node.

        ``on_hang`` is given the generation of the workers and the one that is different, on a thread of the watch.
        """
        self._page: ProgressPage | None = None
        self._watch: HangWatch | None = None
        if timeout > 0:
            from rdzv_launcher.run.hangs.watch import HangWatch  # what most launches do not need

            self._page = ProgressPage(workers)
            self._watch = HangWatch(timeout, place, self._told, stacks, questions, on_hang)
            self._watch.start()

    def environment(self, worker: Mapping[str, str]) -> dict[str, str]:
        """Variables for a worker that is about to be started, beside its own."""
        return self._page.environment(int(worker["RANK"])) if self._page is not None else {}

    def close(self) -> None:
        """End: whatever happens from now on is no hang."""
        if self._watch is not None:
            self._watch.close()
        if self._page is not None:
            self._page.close()

    def _told(self, global_rank: int) -> int:
        return self._page.said_at(global_rank) if self._page is not None else 0

    def answer(self, question: Question) -> Any:
        """As ``questions.Answer``, for the kinds ``standstill`` and ``hang``."""
        if self._watch is not None:
            return self._watch.answer(question)
        if question.kind == STANDSTILL:
            from rdzv_launcher.run.hangs.verdict import NodeStanding  # as above

            return NodeStanding(-1, works=True, watches=False, workers={}).data()
        raise UnknownKind(question.kind)
