"""A node's answers to questions: each is heard on the watch's thread and answered on another.

The question is a key of the asker's session, so it disappears when the asker does, whatever happened to it; then each
node deletes its answer. No answer is written to a question that has gone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdzv_plugins.coordination import Event, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.question_wire import TooLarge, pack_answer, pack_problem, unpack_question
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.plain_text import printable
from rdzv_plugins.questions import Answer, Question, UnknownKind
from rdzv_plugins.runtime import Empty, Runtime

if TYPE_CHECKING:
    import threading
    from queue import Queue

logger = logging.getLogger(__name__)

_THREADS = 4
"""How many questions are answered at the same time, so that a slow one holds up no other asker."""
_WAITING = 32
"""How many questions may wait for a thread; beyond that, the oldest are left unanswered."""


@dataclass
class _Asked:
    """A question that is being asked, and the keys that were written for it."""

    question: Question
    key: KeyValue
    gone: threading.Event
    written: list[str] = field(default_factory=list)


class Answering:
    """Hears and answers questions. Thread-safe.

    ``session`` returns the node's session, and may wait for it; it returns None when there will be none.
    """

    def __init__(self, session: Callable[[], Session | None], node_id: str, runtime: Runtime) -> None:
        self._session, self._node_id, self._runtime = session, node_id, runtime
        self._answer: Answer | None = None
        self._lock = self._runtime.Lock()
        self._asked: dict[str, _Asked] = {}
        self._waiting: Queue[Callable[[], None]] = self._runtime.Queue(_WAITING)
        self._threads = 0
        self._left: list[str] = []
        """Keys of answers to questions that have gone; they are to be deleted."""

    def answer_with(self, answer: Answer) -> None:
        """See ``Questions.answer_with``."""
        self._answer = answer

    def hear(self, event: Event) -> None:
        """Take note that a question's key was written or has gone. Called on the watch's thread; returns at once."""
        id_ = event.key.removeprefix(keys.ASKED)
        if event.value is None:
            with self._lock:
                asked = self._asked.pop(id_, None)
                if asked is not None:
                    asked.gone.set()
                    self._forget(asked)
            if asked is not None:
                self._soon(self._clean)
            return
        try:
            question = unpack_question(id_, event.value)
        except ValueError as error:
            logger.debug("key %s: %s", printable(event.key), error)
            return
        asked = _Asked(question, KeyValue(event.key, event.value, event.revision), self._runtime.Event())
        with self._lock:
            # questions that went while there was no session are not reported: the oldest make room
            old = [self._asked.pop(each) for each in list(self._asked)[: max(0, len(self._asked) + 1 - _WAITING)]]
            self._asked[id_] = asked
            for each in old:
                each.gone.set()
                self._forget(each)
        self._soon(lambda: self._reply(asked))

    def _soon(self, task: Callable[[], None]) -> None:
        with self._lock:
            while self._waiting.full():  # as above, the oldest makes room: whoever asks now is to be answered
                with contextlib.suppress(Empty):
                    self._waiting.get_nowait()
                logger.debug("too many questions at once")
            self._waiting.put_nowait(task)
            if self._threads == _THREADS:
                return
            self._threads += 1
            name = f"rdzv-answers-{self._threads}"
        self._runtime.Thread(target=self._run, name=name).start()

    def _run(self) -> None:
        while True:
            try:
                task = self._waiting.get(timeout=1.0)
            except Empty:  # questions are rare: no thread waits for them
                with self._lock:
                    if self._waiting.empty():
                        self._threads -= 1
                        return
                continue
            try:
                try:
                    task()
                finally:  # the task that was to do so may have been dropped to make room
                    self._clean()
            except (ConnectionLost, TimeoutError) as error:
                logger.debug("a question was not answered: %s", error)
            except Exception:  # the next question must still be answered
                logger.warning("a question was not answered", exc_info=True)

    def _reply(self, asked: _Asked) -> None:
        if asked.gone.is_set():
            return
        parts = self._parts(asked.question)
        session = self._session()
        if session is None:
            return
        prefix = f"{keys.ANSWERS}{asked.question.id}/{self._node_id}/"
        tried: list[str] = []
        try:
            for name, part in parts.items():  # one by one: together they may exceed the limit of a request
                with self._lock:
                    if asked.gone.is_set():
                        break
                    asked.written.append(prefix + name)
                    tried.append(prefix + name)
                written = session.put({prefix + name: part}, ephemeral=True, guard=asked.key, timeout=patience(session))
                if written is None:
                    break
        finally:
            with self._lock:
                if asked.gone.is_set():  # a key deleted in the meantime may have been written again after that
                    asked.written = tried
                    self._forget(asked)

    def _parts(self, question: Question) -> dict[str, bytes]:
        kind = printable(question.kind, 40)
        unknown = (
            f"it does not know questions of kind {kind!r}: it was started by plain torchrun, or is of another version"
        )
        if self._answer is None:
            return pack_problem(unknown)
        try:
            return pack_answer(self._answer(question))
        except UnknownKind:
            return pack_problem(unknown)
        except TooLarge as error:
            return pack_problem(f"its answer is too large: {error}")
        except Exception as error:
            logger.debug("while answering a question of kind %s", kind, exc_info=True)
            return pack_problem(f"its agent met an error: {type(error).__name__}: {error}")

    def _forget(self, asked: _Asked) -> None:
        """Have its answers deleted. The caller holds the lock."""
        self._left += asked.written
        asked.written = []

    def _clean(self) -> None:
        with self._lock:
            left, self._left = self._left, []
        session = self._session() if left else None
        if session is not None:
            with contextlib.suppress(ConnectionLost, TimeoutError):  # they disappear with the session
                session.delete(left, timeout=patience(session))
