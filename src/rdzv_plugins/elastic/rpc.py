"""Questions to all nodes of a run, through the session of one of them or from outside, and the nodes' answers.

A question is a key of the asker's session, so it disappears when the asker does, whatever happened to it; then each
node deletes its answer. No answer is written to a question that has gone. The member keys say who is in the job, so a
node that does not answer can be named.

Values are JSON, answers compressed and split into parts: a service need not accept more than some kilobytes in one
value. Anyone who reaches the service can write such a key, so everything that is read has limits: no question or answer
costs its reader more than some megabytes, whatever it contains.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdzv_plugins.coordination import CoordinationBackend, Event, KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Member, readable
from rdzv_plugins.elastic.node_session import Registration
from rdzv_plugins.elastic.retry import BackgroundTasks, request_timeout
from rdzv_plugins.errors import ConnectionLost
from rdzv_plugins.plain_text import printable
from rdzv_plugins.questions import Answer, RpcRequest, RpcResponse, UnknownKind
from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import threading

logger = logging.getLogger(__name__)

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
) -> list[RpcResponse]:
    """Ask the run of ``service`` in a session of its own; closes the service. Raises ``RdzvError``, ``TimeoutError``.

    ``timeout`` (seconds) applies to reaching the service, and again to the answers. Empty if the run has no nodes.
    """
    with contextlib.closing(service):
        session = service.open_session(_TTL_S, on_lost=lambda _: None, timeout=timeout)
        return ask(session, kind, arguments, timeout, runtime)


def ask(
    session: Session, kind: str, arguments: Mapping[str, Any], timeout: float, runtime: Runtime = SYSTEM
) -> list[RpcResponse]:
    """Do what ``NodeRpc.ask`` does, in this session."""
    start, seconds, of = runtime.monotonic(), request_timeout(session), arguments.get("of")
    answers = _Answers(runtime)

    def begin(members: Sequence[KeyValue]) -> None:
        told, _ = session.list(keys.NODES, timeout=seconds)
        nodes = _nodes(members, told)
        if of is not None:
            nodes = {node_id: node for node_id, node in nodes.items() if [node.host, node.pid] == of}
        answers.nodes = nodes

    with contextlib.ExitStack() as then:
        take = answers.take_members
        members = keys.list_and_watch(session, keys.MEMBERS, begin, take, lambda request: request(seconds))
        then.callback(members.cancel)
        if answers.is_awaited:
            id_ = runtime.uuid4().hex
            then.callback(session.watch(f"{keys.ANSWERS}{id_}/", answers.take, timeout=seconds).cancel)
            then.callback(_withdraw, session, keys.ASKED + id_)
            session.put({keys.ASKED + id_: pack_question(kind, arguments)}, ephemeral=True, timeout=seconds)
            answers.wait(start + timeout)
    found = [_answer(node, timeout) for node in answers.nodes.values()]
    return sorted(found, key=lambda each: (each.node_rank is None, each.node_rank or 0, each.host, each.pid))


def _withdraw(session: Session, question: str) -> None:
    """The nodes delete their answers once it has gone; whoever has asked need not wait for that."""
    with contextlib.suppress(ConnectionLost, TimeoutError):
        session.delete([question], timeout=request_timeout(session))


class _Answers:
    """Collects the answers as they come in. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.nodes: Mapping[str, _Node] = {}  # which are asked
        self._changed = self._runtime.Condition()

    @property
    def is_awaited(self) -> bool:
        """Whether one of the nodes may still answer."""
        return not all(node.is_through for node in self.nodes.values())

    def take(self, events: Sequence[Event]) -> None:
        with self._changed:
            for event in events:
                node_id, _, name = event.key.partition("/")[2].partition("/")[2].partition("/")
                node = self.nodes.get(node_id)
                if node is None or event.value is None or node.is_through or not is_part(name, event.value):
                    continue
                if len(node.parts) < MOST_PARTS:
                    node.parts[name] = event.value
            self._changed.notify_all()

    def take_members(self, events: Sequence[Event]) -> None:
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
    nodes = {node_id: _Node(place.rank, place.host, place.pid, gone=True) for node_id, place in ranks.items()}
    for member in readable(Member, members):
        rank = ranks[member.node_id].rank if member.node_id in ranks else None
        nodes[member.node_id] = _Node(rank, member.host, member.pid)
    return nodes


def _answer(node: _Node, timeout: float) -> RpcResponse:
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
    return RpcResponse(node.rank, node.host, node.pid, answer, printable(problem), silent)


_THREADS = 4  # how many questions are answered at the same time, so that a slow one holds up no other asker
_WAITING = 32  # how many questions may wait for a thread; beyond that, the oldest are left unanswered


@dataclass
class _Asked:
    """A question that is being asked, and the keys that were written for it."""

    question: RpcRequest
    key: KeyValue
    gone: threading.Event
    written: list[str] = field(default_factory=list)


class ElasticRpc:
    """Implements ``NodeRpc``, asked and answered in the session that the node has. Thread-safe."""

    def __init__(self, registration: Registration, run_id: str, runtime: Runtime) -> None:
        self._registration, self._runtime = registration, runtime
        self._in_background = BackgroundTasks(run_id, runtime, name="rdzv-answers", threads=_THREADS, most=_WAITING)
        self._answer: Answer | None = None
        self._lock = self._runtime.Lock()
        self._asked: dict[str, _Asked] = {}
        self._left: list[str] = []  # keys of answers to questions that have gone; they are to be deleted

    def ask(self, kind: str, arguments: Mapping[str, Any], timeout: float) -> list[RpcResponse]:
        session = self._registration.session
        if session is None:
            raise ConnectionLost("there is no session with the rendezvous now")
        return ask(session, kind, arguments, timeout, self._runtime)

    def answer_with(self, answer: Answer) -> None:
        self._answer = answer

    def on_question(self, event: Event) -> None:
        """Take note that a question's key was written or has gone. Called on the watch's thread; returns at once."""
        id_ = event.key.removeprefix(keys.ASKED)
        if event.value is None:
            with self._lock:
                asked = self._asked.pop(id_, None)
                if asked is not None:
                    self._forget(asked)
            if asked is not None:
                self._in_background("clean", self._clean)
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
                self._forget(each)
        self._in_background(id_, lambda: self._reply_and_clean(asked))

    def _reply_and_clean(self, asked: _Asked) -> None:
        try:
            self._reply(asked)
        finally:  # the task that was to do so may have been dropped to make room
            self._clean()

    def _reply(self, asked: _Asked) -> None:
        if asked.gone.is_set():
            return
        parts = self._parts(asked.question)
        session = self._registration.wait_session()
        if session is None:
            return
        prefix = f"{keys.ANSWERS}{asked.question.id}/{self._registration.me.node_id}/"
        try:
            for name, part in parts.items():  # one by one: together they may exceed the limit of a request
                with self._lock:
                    if asked.gone.is_set():
                        break
                    asked.written.append(prefix + name)
                written = session.put(
                    {prefix + name: part}, ephemeral=True, guard=asked.key, timeout=request_timeout(session)
                )
                if written is None:
                    break
        finally:
            with self._lock:
                if asked.gone.is_set():  # a key deleted in the meantime may have been written again after that
                    self._forget(asked)

    def _parts(self, question: RpcRequest) -> dict[str, bytes]:
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
        except Exception as error:
            logger.debug("while answering a question of kind %s", kind, exc_info=True)
            return pack_problem(f"its agent met an error: {type(error).__name__}: {error}")

    def _forget(self, asked: _Asked) -> None:
        """It has gone: have its answers deleted. The caller holds the lock."""
        asked.gone.set()
        self._left += asked.written

    def _clean(self) -> None:
        with self._lock:
            left, self._left = self._left, []
        session = self._registration.wait_session() if left else None
        if session is not None:
            with contextlib.suppress(ConnectionLost, TimeoutError):  # they disappear with the session
                session.delete(left, timeout=request_timeout(session))


PART_BYTES = 48 * 2**10
MOST_PARTS = 64
MOST_BYTES = 32 * 2**20  # the most bytes of an answer, unpacked
_QUESTION_BYTES = 16 * 2**10
_ID = re.compile(r"[0-9a-f]{32}")


def pack_question(kind: str, arguments: Mapping[str, Any]) -> bytes:
    """The value of a question's key."""
    return json.dumps({"kind": kind, "arguments": dict(arguments)}).encode()


def unpack_question(id_: str, value: bytes) -> RpcRequest:
    """Reverse ``pack_question``. Raises ``ValueError``."""
    if not _ID.fullmatch(id_) or len(value) > _QUESTION_BYTES:
        raise ValueError("not a question: its id, or its length")
    data = _parse(value)
    kind, arguments = data.get("kind"), data.get("arguments")
    if not isinstance(kind, str) or not isinstance(arguments, dict):
        raise ValueError("not a question")
    return RpcRequest(id_, kind, arguments)


def pack_answer(answer: Any) -> dict[str, bytes]:
    """The parts of an answer by name, or of the problem that it is too large. Raises as ``json`` does."""
    plain = json.dumps({"answer": answer}).encode()
    packed = zlib.compress(plain)
    parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
    if len(parts) > MOST_PARTS or len(plain) > MOST_BYTES:
        return pack_problem(f"its answer is too large: it has {len(plain) / 2**20:.0f} MiB")
    return _named(parts)


def pack_problem(problem: str) -> dict[str, bytes]:
    """Like ``pack_answer``, for a node that has no answer."""
    return _named([zlib.compress(json.dumps({"problem": problem[:1000]}).encode())])


def is_part(name: str, value: bytes) -> bool:
    """Whether ``value`` can be a part of an answer under this name."""
    number, _, of = name.partition(".")
    if len(value) > PART_BYTES or not (number.isdecimal() and of.isdecimal()) or len(name) > 8:
        return False
    return int(number) < int(of) <= MOST_PARTS


def is_whole(parts: Mapping[str, bytes]) -> bool:
    """Whether all parts of an answer are there."""
    counts = {name.partition(".")[2] for name in parts}
    return len(counts) == 1 and len(parts) == int(counts.pop())


def unpack_answer(parts: Mapping[str, bytes]) -> tuple[Any, str]:
    """The answer from all its ``parts``, and "", or None and the problem. Raises ``ValueError``."""
    unpacking = zlib.decompressobj()
    packed = b"".join(value for _, value in sorted(parts.items(), key=lambda each: int(each[0].partition(".")[0])))
    try:
        plain = unpacking.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise ValueError("it is too large, or not whole")
    data = _parse(plain)
    if "answer" not in data:
        return None, str(data.get("problem") or "it has no answer")
    return data["answer"], ""


def _named(parts: Sequence[bytes]) -> dict[str, bytes]:
    return {f"{number}.{len(parts)}": part for number, part in enumerate(parts)}


def _parse(value: bytes) -> dict[str, Any]:
    try:
        data = json.loads(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data
