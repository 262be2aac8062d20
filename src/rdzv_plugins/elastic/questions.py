"""``Questions`` of an elastic handler, asked and answered in the session that the node has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdzv_plugins.elastic import asking
from rdzv_plugins.elastic.answering import Answering
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.questions import Answer, NodeAnswer
from rdzv_plugins.runtime import Runtime


class ElasticQuestions:
    """Implements ``Questions``. Thread-safe. The view passes each question on to ``answering``."""

    def __init__(self, link: Link, node_id: str, runtime: Runtime) -> None:
        self._link, self._runtime = link, runtime
        self.answering = Answering(link.wait_session, node_id, runtime)

    def ask(self, kind: str, arguments: Mapping[str, Any], timeout: float) -> list[NodeAnswer]:
        session = self._link.session
        if session is None:
            raise ConnectionLost("there is no session with the rendezvous now")
        return asking.ask(session, kind, arguments, timeout, self._runtime)

    def answer_with(self, answer: Answer) -> None:
        self.answering.answer_with(answer)
