"""Asking all nodes of a run, through the session of one of them or from outside: two writes and a watch.

The member keys say who is in the job, so a node that does not answer can be named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.insisting import patience
from rdzv_plugins.elastic.keys import Assignment, Member, readable
from rdzv_plugins.elastic.question_wire import MOST_PARTS, is_part, is_whole, pack_question, unpack_answer
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.plain_text import printable
from rdzv_plugins.questions import NodeAnswer
from rdzv_plugins.runtime import SYSTEM, Runtime

_TTL_S = 10.0


@dataclass
class _Node:
    """A node that is asked."""

    rank: int | None
    host: str
    pid: int
    parts: dict[str, bytes] = field(default_factory=dict)
    gone: bool = False

    @property
    def is_through(self) -> bool:
        return self.gone or is_whole(self.parts)


def ask_from_outside(
    service: CoordinationBackend, kind: str, arguments: Mapping[str, Any], timeout: float, runtime: Runtime = SYSTEM
) -> list[NodeAnswer]:
    """Ask the run of ``service`` in a session of its own; closes the service. Raises ``RdzvError``, ``TimeoutError``.

    ``timeout`` (seconds) applies to reaching the service, and again to the answers. Empty if the run has no nodes.
    """
    with contextlib.closing(service):
        session = service.open_session(_TTL_S, on_lost=lambda _: None, timeout=timeout)
        return ask(session, kind, arguments, timeout, runtime)


def ask(
    session: Session, kind: str, arguments: Mapping[str, Any], timeout: float, runtime: Runtime = SYSTEM
) -> list[NodeAnswer]:
    """Do what ``Questions.ask`` does, in this session."""
    start, seconds, of = runtime.monotonic(), patience(session), arguments.get("of")
    answers = _Answers(runtime)

    def begin(members: Sequence[KeyValue]) -> None:
        told, _ = session.list(keys.NODES, timeout=seconds)
        nodes = _nodes(members, told)
        if of is not None:
            nodes = {node_id: node for node_id, node in nodes.items() if [node.host, node.pid] == of}
        answers.begin(nodes)

    watch = keys.list_and_watch(session, keys.MEMBERS, begin, answers.hear_of_members, lambda request: request(seconds))
    try:
        if answers.is_awaited:
            _exchange(session, answers, kind, arguments, start + timeout, runtime)
    finally:
        watch.cancel()
    found = [_answer(node, timeout) for node in answers.nodes.values()]
    return sorted(found, key=lambda each: (each.node_rank is None, each.node_rank or 0, each.host, each.pid))


def _exchange(
    session: Session, answers: _Answers, kind: str, arguments: Mapping[str, Any], deadline: float, runtime: Runtime
) -> None:
    id_ = runtime.uuid4().hex
    question = {keys.ASKED + id_: pack_question(kind, arguments)}
    seconds = patience(session)
    watch = session.watch(f"{keys.ANSWERS}{id_}/", answers.hear, timeout=seconds)
    try:
        session.put(question, ephemeral=True, timeout=seconds)
        answers.wait(deadline)
    finally:
        # the nodes delete their answers once the question has gone; this one need not wait for that
        with contextlib.suppress(ConnectionLost, TimeoutError):
            session.delete(question, timeout=seconds)
        watch.cancel()


class _Answers:
    """Collects the answers as they come in. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.nodes: Mapping[str, _Node] = {}
        self._changed = self._runtime.Condition()

    def begin(self, nodes: Mapping[str, _Node]) -> None:
        """These are asked."""
        with self._changed:
            self.nodes = nodes

    @property
    def is_awaited(self) -> bool:
        """Whether one of the nodes may still answer."""
        return not all(node.is_through for node in self.nodes.values())

    def hear(self, events: Sequence[Event]) -> None:
        with self._changed:
            for event in events:
                node_id, _, name = event.key.partition("/")[2].partition("/")[2].partition("/")
                node = self.nodes.get(node_id)
                if node is None or event.value is None or node.is_through or not is_part(name, event.value):
                    continue
                if len(node.parts) < MOST_PARTS:
                    node.parts[name] = event.value
            self._changed.notify_all()

    def hear_of_members(self, events: Sequence[Event]) -> None:
        with self._changed:
            for event in events:
                node = self.nodes.get(event.key.removeprefix(keys.MEMBERS))
                if node is not None and event.value is None:
                    node.gone = True
            self._changed.notify_all()

    def wait(self, deadline: float) -> None:
        """Wait until all nodes are done, or until ``deadline`` (monotonic)."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_awaited, max(0.0, deadline - self._runtime.monotonic()))


def _nodes(members: Sequence[KeyValue], told: Sequence[KeyValue]) -> dict[str, _Node]:
    """The nodes that are present, and those of the newest round that no longer are."""
    places = [place for place in readable(Assignment, told) if place.is_place]
    newest = max((place.round for place in places), default=0)
    ranks = {place.node_id: place for place in places if place.round == newest}
    nodes = {}
    for member in readable(Member, members):
        place = ranks.get(member.node_id)
        nodes[member.node_id] = _Node(place.rank if place else None, member.host, member.pid)
    for node_id, place in ranks.items():
        if node_id not in nodes:
            nodes[node_id] = _Node(place.rank, place.host, place.pid, gone=True)
    return nodes


def _answer(node: _Node, timeout: float) -> NodeAnswer:
    answer, problem, silent = None, "", False
    if is_whole(node.parts):
        try:
            answer, problem = unpack_answer(node.parts)
        except ValueError as error:
            problem = f"has answered with something that cannot be read: {error}"
    elif node.gone:
        problem = "has left the job, or was lost"
    else:
        silent = True
        problem = f"has not answered within {timeout:g} s: its agent is stopped, or its machine is too busy"
    return NodeAnswer(node.rank, node.host, node.pid, answer, printable(problem), silent)
