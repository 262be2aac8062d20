"""Each listed difference from torch's libuv server, tried on both: ours does right, and torch's still does otherwise.

Where torch's server no longer does, the difference can go from the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from kits.wire import wire_client as wire
from kits.wire.attack_kit import wait_until
from kits.wire.differences import Difference
from kits.wire.store_servers import KINDS, Server, running

pytestmark = pytest.mark.thorough

A, B, Q, X = b"/a", b"/b", b"/q", b"/x"
RELEASED, NOTHING = wire.STOP_WAITING, b""
Trial = Callable[[Server, bool], None]
TRIALS: dict[Difference, Trial] = {}


def trial(difference: Difference) -> Callable[[Trial], Trial]:
    def register(function: Trial) -> Trial:
        TRIALS[difference] = function
        return function

    return register


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("difference", Difference, ids=lambda each: each.name)
def test_difference(kind, difference):
    with running(kind) as server:
        TRIALS[difference](server, kind != "torch")


def does(connection: wire.Raw, *requests: bytes) -> bytes:
    """What the connection has got once all of it is done."""
    for request in requests:
        connection.send(request)
    return connection.fence()


def wait(*keys: bytes) -> bytes:
    return wire.keyed(wire.WAIT, keys)


def crowd(server: Server, count: int) -> Iterator[wire.Raw]:
    return (server.connect() for _ in range(count))


def bystander(server: Server) -> wire.Raw:
    """Answered after the server has looked at what came before: packets that are sent apart stay apart."""
    return server.connect()


@trial(Difference.SPLIT_VALIDATE)
def split_validate(server: Server, ours: bool) -> None:
    other = bystander(server)

    def in_two(cut: int) -> wire.Raw:
        connection = server.connect(validated=False)
        connection.send(wire.validate()[:cut])
        other.fence()
        other.fence()
        connection.send(wire.validate()[cut:])
        return connection

    def closed(connection: wire.Raw) -> bool:
        try:
            connection.fence()
        except wire.Closed:
            return True
        return False

    for cut in range(1, 5):
        if ours:
            with in_two(cut) as connection:
                assert does(connection, wire.set_(A, b"1"), wire.get(A)) == wire.text(b"1")
        else:  # a busy machine may accept the connection only when both packets are there
            assert any(closed(in_two(cut)) for _ in range(10))


@trial(Difference.UNVALIDATED_REQUESTS)
def unvalidated_requests(server: Server, ours: bool) -> None:
    other = bystander(server)
    for first in (wire.set_(A, b"1"), wire.ping(1), b"GET / HTTP/1.1\r\n\r\n", wire.validate(1) + wire.set_(A, b"1")):
        stranger = server.connect(validated=False)
        stranger.send(first)
        if ours:
            assert stranger.until_close() == b""
        else:
            other.fence()
            other.fence()
            assert other.ask(wire.op(wire.NUM_KEYS), 8) == wire.i64(0), "not run at once"
        stranger.close()

    def answered() -> bool:
        with server.connect(validated=False) as stranger:
            stranger.send(wire.set_(A, b"1"))
            other.fence()
            other.fence()
            stranger.socket.settimeout(3)
            try:
                return stranger.fence() == b""
            except TimeoutError:  # a busy machine may read both packets as one, which it then waits behind
                return False

    if not ours:
        assert any(answered() for _ in range(10)), "answered like one that has shown what it is"
    assert other.ask(wire.op(wire.NUM_KEYS), 8) == wire.i64(0 if ours else 1)


@trial(Difference.LINEAR_TIME)
def linear_time(server: Server, ours: bool) -> None:
    """By the CPU time of this process, where the server runs too, compared with itself at another size."""
    connection = server.connect()

    def cpu(keys: int) -> float:
        request = wire.keyed(wire.MULTI_GET, [b"/key%05d" % number for number in range(keys)])
        begin = time.process_time()
        assert len(connection.ask(request, 8 * keys)) == 8 * keys
        return time.process_time() - begin

    per_key = {keys: min(cpu(keys) for _ in range(3)) / keys for keys in (2_000, 32_000)}
    growth = per_key[32_000] / per_key[2_000]
    assert growth < 4 if ours else growth > 4, growth


@trial(Difference.PARTIAL_MULTI_SET)
def partial_multi_set(server: Server, ours: bool) -> None:
    slow, other = crowd(server, 2)
    waiting = server.connect()
    assert does(waiting, wait(A)) == NOTHING

    def comes(value: bytes) -> bool:
        """Whether A has it: on torch's server a moment later, as its packets come; on ours never."""
        if ours:
            other.fence()
            return does(other, wire.get(A)) == wire.text(value)
        return bool(
            wait_until(lambda: does(other, wire.get(A)) == wire.text(value), lambda: f"{value!r} was not written")
        )

    slow.send(wire.op(wire.MULTI_SET, wire.u64(2), wire.text(A), wire.text(b"1"), wire.text(B)))
    assert comes(b"" if ours else b"1")
    assert waiting.fence() == (NOTHING if ours else RELEASED)
    assert does(other, wire.set_(A, b"others")) == b""
    slow.send(wire.text(b"2"))
    assert slow.fence() == b""
    assert does(other, wire.get(A), wire.get(B)) == wire.text(b"1") + wire.text(b"2"), "in both: the last write counts"
    slow.send(wire.op(wire.MULTI_SET, wire.u64(2), wire.text(A), wire.text(b"3"), wire.text(B)))
    assert comes(b"1" if ours else b"3")
    assert does(other, wire.set_(A, b"others")) == b""
    slow.send(wire.u64(1))
    assert comes(b"others" if ours else b"3")


@trial(Difference.COMPARE_SET_WAKES)
def compare_set_wakes(server: Server, ours: bool) -> None:
    waiting, other = crowd(server, 2)
    assert does(waiting, wait(A)) == NOTHING
    assert does(other, wire.compare_set(A, b"expected", b"new")) == wire.text(b"expected")
    assert waiting.fence() == (NOTHING if ours else RELEASED)
    assert does(other, wire.keyed(wire.CHECK, [A])) == b"\1"
    assert does(other, wire.compare_set(A, b"", b"new")) == wire.text(b"new")
    assert waiting.fence() == (RELEASED if ours else NOTHING)


@trial(Difference.PIPELINED_WAITS)
def pipelined_waits(server: Server, ours: bool) -> None:
    waiting, other = crowd(server, 2)
    assert does(waiting, wait(A), wait(B, X)) == NOTHING
    assert does(other, wire.set_(A, b"")) == b""
    assert waiting.fence() == (RELEASED if ours else NOTHING)
    assert does(other, wire.set_(B, b"")) == b""
    assert waiting.fence() == (NOTHING if ours else RELEASED)
    assert does(other, wire.set_(X, b"")) == b""
    assert waiting.fence() == (RELEASED if ours else NOTHING)
    assert does(waiting, wait(Q), wait(Q), wire.op(wire.CANCEL_WAIT)) == wire.WAIT_CANCELED
    assert does(other, wire.set_(Q, b"")) == b""
    assert waiting.fence() == NOTHING


@trial(Difference.QUEUE_IN_MULTI_WAIT)
def queue_in_multi_wait(server: Server, ours: bool) -> None:
    waiting, other = crowd(server, 2)
    assert does(other, wire.queue_push(Q, b"item")) == b""
    assert does(waiting, wait(Q, X)) == NOTHING
    assert does(other, wire.set_(X, b"")) == b""
    assert waiting.fence() == (RELEASED if ours else NOTHING)


@trial(Difference.STALE_QUEUE_WAITER)
def stale_queue_waiter(server: Server, ours: bool) -> None:
    waiting, other = crowd(server, 2)
    assert does(waiting, wait(Q)) == NOTHING
    assert does(other, wire.queue_push(Q, b"1")) == b""
    assert waiting.fence() == RELEASED
    assert does(waiting, wait(X)) == NOTHING
    assert does(other, wire.queue_push(Q, b"2")) == b""
    assert waiting.fence() == (NOTHING if ours else RELEASED)


@trial(Difference.PUSHES_ARE_COUNTED)
def pushes_are_counted(server: Server, ours: bool) -> None:
    waiting, other = crowd(server, 2)
    assert does(waiting, wait(Q, X)) == NOTHING
    assert does(other, wire.queue_push(Q, b"1")) == b""
    assert waiting.fence() == NOTHING
    assert does(other, wire.queue_push(Q, b"2")) == b""
    assert waiting.fence() == (NOTHING if ours else RELEASED)


@trial(Difference.BARRIER_SIZES)
def barrier_sizes(server: Server, ours: bool) -> None:
    four, three, two, last = crowd(server, 4)
    assert does(four, wire.barrier(B, 4)) == NOTHING
    assert does(three, wire.barrier(B, 3)) == NOTHING
    assert does(two, wire.barrier(B, 2)) == RELEASED
    assert three.fence() == RELEASED
    assert four.fence() == (NOTHING if ours else RELEASED)
    assert does(last, wire.barrier(B, 4)) == RELEASED
    assert four.fence() == (RELEASED if ours else NOTHING)


@trial(Difference.BARRIER_RELEASED_BY_ANY_WRITE)
def barrier_released_by_any_write(server: Server, ours: bool) -> None:
    waiting, other = crowd(server, 2)
    writes = [
        wire.set_(B, b"word"),
        wire.set_(B, b"1"),
        wire.append(B, b""),
        wire.multi_set([(B, b"1")]),
        wire.queue_push(B, b"item"),
    ]
    for write in writes:
        assert does(other, wire.delete(B))[:8] in (wire.i64(0), wire.i64(1))
        assert does(waiting, wire.barrier(B, 2)) == NOTHING
        assert does(other, write) == b""
        assert waiting.fence() == (NOTHING if ours else RELEASED)
        assert does(waiting, wire.op(wire.CANCEL_WAIT)) == wire.WAIT_CANCELED
    for number in (wire.set_(B, b"9"), wire.append(B, b"0"), wire.multi_set([(B, b"2")])):
        assert len(does(other, wire.delete(B))) == 8
        assert does(waiting, wire.barrier(B, 2)) == NOTHING
        assert does(other, number) == b""
        assert waiting.fence() == RELEASED, "as many as it waits for have arrived, whoever has counted them"


@trial(Difference.WAIT_FOR_BARRIER_KEY)
def wait_for_barrier_key(server: Server, ours: bool) -> None:
    waiting, first, second = crowd(server, 3)
    assert does(waiting, wait(B)) == NOTHING
    assert does(first, wire.barrier(B, 2)) == NOTHING
    assert waiting.fence() == (RELEASED if ours else NOTHING)
    assert does(second, wire.barrier(B, 2)) == RELEASED
    assert waiting.fence() == (NOTHING if ours else RELEASED)


@trial(Difference.OWN_WAITS_AFTER_REPLY)
def own_waits_after_reply(server: Server, ours: bool) -> None:
    connection = server.connect()
    five = wire.i64(5)
    assert does(connection, wait(A) + wire.add(A, 5)) == (five + RELEASED if ours else RELEASED + five)
    # but before what is asked next, in the same packet or not
    assert does(connection, wait(B) + wire.set_(B, b"v") + wire.get(B)) == RELEASED + wire.text(b"v")
    assert does(connection, wait(X), wire.set_(X, b"v"), wire.get(X)) == RELEASED + wire.text(b"v")


def test_every_difference_is_tried():
    assert set(TRIALS) == set(Difference)
