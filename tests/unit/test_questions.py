"""Questions and answers through a real server: who answers, who is named, what is left, and what garbage does."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kits.eventually import eventually

from rdzv_plugins.coordination import Event
from rdzv_plugins.elastic import keys, rpc
from rdzv_plugins.elastic.keys import Assignment, Member, encode
from rdzv_plugins.elastic.rpc import (
    MOST_PARTS,
    PART_BYTES,
    ElasticRpc,
    _Answers,
    ask,
    is_part,
    is_whole,
    pack_answer,
    pack_question,
    unpack_answer,
    unpack_question,
)
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination, NativeSession
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.questions import RpcRequest, UnknownKind
from rdzv_plugins.runtime import SYSTEM

PATIENCE_S = 60.0
ID = "0123456789abcdef" * 2
LEFT = "has left the job, or was lost"
HOSTS = ("zero", "one")
"""By rank, which is not their order."""


class Run:
    """A run at a server of its own, and its sessions."""

    def __init__(self, port: int) -> None:
        self._service = NativeCoordination(Endpoint("127.0.0.1", port), "run", name="test", who="the test")
        self.observer = self.open()

    def open(self) -> NativeSession:
        return self._service.open_session(60, on_lost=lambda _: None, timeout=PATIENCE_S)

    def close(self) -> None:
        self._service.close()

    def keys(self, *prefixes: str) -> list[str]:
        return [kv.key for prefix in prefixes for kv in self.observer.list(prefix, timeout=PATIENCE_S)[0]]

    def asks(self, number: int, session: NativeSession, **arguments: Any) -> None:
        """A stranger asks that, and does not wait for the answers."""
        question = {f"{keys.ASKED}{number:032x}": pack_question("echo", arguments)}
        session.put(question, ephemeral=True, timeout=PATIENCE_S)

    def wait_empty(self) -> None:
        """Until nothing is left of any question."""
        there = lambda: self.keys(keys.ASKED, keys.ANSWERS)  # noqa: E731
        eventually(lambda: not there(), lambda: f"still there: {there()}")


class Node:
    """A node of the run, as far as questions go."""

    def __init__(self, run: Run, rank: int, answer: Callable[[RpcRequest], Any] | None) -> None:
        self.session, self.id = run.open(), f"node-{rank}"
        self.me = member = Member(self.id, HOSTS[rank], "m", 100 + rank, "127.0.0.1", "127.0.0.1", 1)
        place = Assignment(3, rank, 2, self.id, member.host, "m", member.pid, "127.0.0.1", 1, None, "127.0.0.1", 1)
        self.session.put({keys.NODES + self.id: encode(place)}, timeout=PATIENCE_S)
        self.session.put({keys.MEMBERS + self.id: encode(member)}, ephemeral=True, timeout=PATIENCE_S)
        self.answering = ElasticRpc(self, "run", SYSTEM)  # type: ignore[arg-type]
        if answer is not None:
            self.answering.answer_with(answer)
        self.session.watch(keys.ALL, self._hear, timeout=PATIENCE_S)

    def wait_session(self) -> NativeSession:
        return self.session

    def _hear(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.key.startswith(keys.ASKED):
                self.answering.on_question(event)


@pytest.fixture
def run() -> Iterator[Run]:
    with StoreServer("127.0.0.1", threads=1) as server:
        run = Run(server.port)
        yield run
        run.close()


def echo(question: RpcRequest) -> Any:
    if question.kind != "echo":
        raise UnknownKind(question.kind)
    return dict(question.arguments)


def test_each_node_answers_and_nothing_is_left(run: Run) -> None:
    for rank in (1, 0):
        Node(run, rank, lambda question, rank=rank: echo(question) | {"rank": rank})
    answers = ask(run.open(), "echo", {"a": [1, "ü"]}, PATIENCE_S)
    assert [(each.node_rank, each.host, each.pid) for each in answers] == [(0, "zero", 100), (1, "one", 101)]
    assert [each.answer for each in answers] == [{"a": [1, "ü"], "rank": rank} for rank in (0, 1)]
    assert [each.problem for each in answers] == ["", ""]
    run.wait_empty()


def test_a_question_to_one_node_waits_for_no_other(run: Run) -> None:
    """The other one never answers: waiting for it would not end before the time-out of the tests."""
    hangs = threading.Event()
    Node(run, 0, echo)
    Node(run, 1, lambda question: hangs.wait())
    [answer] = ask(run.open(), "echo", {"of": ["zero", 100]}, 86_400.0)
    assert (answer.host, answer.answer) == ("zero", {"of": ["zero", 100]})
    assert ask(run.open(), "echo", {"of": ["zero", 7]}, 86_400.0) == []
    hangs.set()


def test_what_goes_wrong_at_a_node_is_said_and_the_next_question_is_answered(run: Run) -> None:
    def divide(question: RpcRequest) -> Any:
        if question.kind != "divide":
            raise UnknownKind(question.kind)
        return 1 / question.arguments["by"]

    Node(run, 0, divide)
    Node(run, 1, None)
    problems = [each.problem for each in ask(run.open(), "x" * 500, {}, PATIENCE_S)]
    assert all("it does not know questions of kind 'xxx" in each and len(each) < 200 for each in problems)
    first, second = (ask(run.open(), "divide", {"by": by}, PATIENCE_S)[0] for by in (0, 2))
    assert first.problem == "its agent met an error: ZeroDivisionError: division by zero"
    assert second.answer == 0.5


def test_answers_may_be_larger_than_a_value_may_be_and_not_endless(run: Run, monkeypatch) -> None:
    monkeypatch.setattr(rpc, "MOST_BYTES", 2**20)
    noise = [zlib.crc32(str(number).encode()) for number in range(20_000)]
    Node(run, 0, lambda question: noise if question.kind == "much" else noise * 10)
    (much,) = ask(run.open(), "much", {}, PATIENCE_S)
    assert much.answer == noise
    assert len(pack_answer(noise)) > 1
    (more,) = ask(run.open(), "more", {}, PATIENCE_S)
    assert "its answer is too large: it has " in more.problem
    run.wait_empty()


def test_nodes_that_do_not_answer_or_have_gone_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = threading.Event(), threading.Event()
    silent = Node(run, 0, lambda question: asked.set() or go_on.wait(PATIENCE_S))
    gone = Node(run, 1, None)
    gone.session.close()
    eventually(lambda: run.keys(keys.MEMBERS) == [keys.MEMBERS + silent.id], lambda: "it is still there")
    wait = _Answers.wait

    def wait_later(answers: _Answers, deadline: float) -> None:
        assert asked.wait(PATIENCE_S)  # else the question may go before the node has heard it
        wait(answers, deadline)

    monkeypatch.setattr(_Answers, "wait", wait_later)
    first, second = ask(run.open(), "echo", {}, 0.5)
    go_on.set()
    assert first.problem.startswith("has not answered within 0.5 s")
    assert (second.node_rank, second.host, second.problem) == (1, "one", LEFT)
    run.wait_empty()  # it answers too late: to nobody


def test_a_node_that_goes_while_it_is_waited_for_is_not_waited_for(run: Run) -> None:
    Node(run, 0, echo)
    leaving = Node(run, 1, None)
    leaving.answering.answer_with(lambda question: leaving.session.close())
    assert [each.problem for each in ask(run.open(), "echo", {}, PATIENCE_S)] == ["", LEFT]


def test_garbage_harms_nobody(run: Run) -> None:
    Node(run, 0, echo)
    garbage = [b"", b"\xff", b"[]", b'{"kind": 1}', b"[" * 10_000, b"x" * 100_000, b'{"kind": "a", "arguments": []}']
    stranger = run.open()
    for number, value in enumerate(garbage):
        stranger.put({f"{keys.ASKED}{number:032x}": value}, ephemeral=True, timeout=PATIENCE_S)
    for name in ("short", "../" * 10, "X" * 32):
        stranger.put({keys.ASKED + name: pack_question("echo", {})}, ephemeral=True, timeout=PATIENCE_S)
    for number in range(200):  # more than are kept: the oldest make room
        run.asks(number, stranger)
    eventually(lambda: run.keys(keys.ANSWERS), lambda: "no answer")
    stranger.close()  # the answers go with an asker that dies
    (answer,) = ask(run.open(), "echo", {"well": True}, PATIENCE_S)
    assert answer.answer == {"well": True}
    run.wait_empty()


def test_answers_go_although_newer_questions_make_room_for_themselves(run: Run) -> None:
    """All threads are busy when the question goes, and more come than may wait."""
    free, busy = threading.Event(), threading.Semaphore(0)

    def answer(question: RpcRequest) -> Any:
        if question.arguments:
            busy.release()
            assert free.wait(PATIENCE_S)
        return {}

    node, stranger = Node(run, 0, answer), run.open()
    run.asks(0, stranger)
    eventually(lambda: run.keys(keys.ANSWERS), lambda: "no answer")
    for number in range(1, 5):
        run.asks(number, stranger, holds=True)
        assert busy.acquire(timeout=PATIENCE_S)
    stranger.delete([f"{keys.ASKED}{0:032x}"], timeout=PATIENCE_S)
    for number in range(5, 80):
        run.asks(number, stranger)
    eventually(lambda: f"{79:032x}" in node.answering._asked, lambda: "the last has not been heard")
    free.set()
    stranger.close()
    run.wait_empty()


def test_an_answer_that_is_written_after_it_was_deleted_goes_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer questions make room for themselves while it is on its way; its question is still there."""
    node, stranger = Node(run, 0, echo), run.open()
    first, deleted, written = f"{keys.ANSWERS}{0:032x}/", threading.Event(), threading.Event()
    put, delete = node.session.put, node.session.delete

    def put_late(items: Any, **options: Any) -> None:
        late = next(iter(items)).startswith(first)
        if late:
            for number in range(1, 40):
                run.asks(number, stranger)
            assert deleted.wait(PATIENCE_S)
        put(items, **options)
        if late:
            written.set()

    def delete_and_say(names: Sequence[str], **options: Any) -> None:
        delete(names, **options)
        if any(name.startswith(first) for name in names):
            deleted.set()

    monkeypatch.setattr(node.session, "put", put_late)
    monkeypatch.setattr(node.session, "delete", delete_and_say)
    run.asks(0, stranger)
    assert written.wait(PATIENCE_S)
    stranger.close()
    run.wait_empty()


def test_forged_answers_are_not_believed_to_be_whole(monkeypatch) -> None:
    monkeypatch.setattr(rpc, "MOST_BYTES", 2**20)
    bomb = zlib.compress(b'{"answer": "' + b"0" * 2**21 + b'"}')
    for parts in (bomb, b"no zlib", zlib.compress(b"[]"), zlib.compress(b"[" * 9999)):
        with pytest.raises(ValueError):  # noqa: PT011
            unpack_answer({"0.1": parts})
    assert not is_whole({"0.2": b"", "0.1": b""})
    assert not is_whole({})
    assert not is_part("0.1", b"x" * (PART_BYTES + 1))
    assert not any(is_part(name, b"") for name in ("", "1.1", "x.1", "0", f"0.{MOST_PARTS + 1}", "-1.3", "0.9999999"))
    assert unpack_answer(pack_answer({"a": None})) == ({"a": None}, "")
    assert unpack_question(ID, json.dumps({"kind": "k", "arguments": {}}).encode()) == RpcRequest(ID, "k", {})
