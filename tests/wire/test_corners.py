"""Limits to the byte, and numbers in values: the same on torch's libuv server and ours."""

from __future__ import annotations

import pytest
from kits.wire import wire_client as wire
from kits.wire.store_servers import Server

A = b"/a"
MIB = 2**20
MOST = 131_072  # keys in one request

REFUSED = {
    "key": (wire.op(wire.GET, wire.u64(8193)), "key too long"),
    "second key": (wire.op(wire.CHECK, wire.u64(2), wire.text(A), wire.u64(8193)), "key too long"),
    "set": (wire.op(wire.SET, wire.text(A), wire.u64(8 * MIB + 1)), "value too long"),
    "append": (wire.op(wire.APPEND, wire.text(A), wire.u64(8 * MIB + 1)), "value too long"),
    "expected": (wire.op(wire.COMPARE_SET, wire.text(A), wire.u64(8 * MIB + 1)), "value too long"),
    "desired": (wire.op(wire.COMPARE_SET, wire.text(A), wire.text(b""), wire.u64(8 * MIB + 1)), "value too long"),
    "push": (wire.op(wire.QUEUE_PUSH, wire.text(A), wire.u64(8 * MIB + 1)), "value too long"),
    "check": (wire.op(wire.CHECK, wire.u64(MOST + 1)), "too many keys"),
    "wait": (wire.op(wire.WAIT, wire.u64(MOST + 1)), "too many keys"),
    "multi_get": (wire.op(wire.MULTI_GET, wire.u64(MOST + 1)), "too many keys"),
    "multi_set": (wire.op(wire.MULTI_SET, wire.u64(MOST + 1)), "too many keys"),
    "negative": (wire.op(wire.MULTI_SET, wire.i64(-1)), "too many keys"),
    "huge": (wire.op(wire.SET, wire.u64(2**64 - 1)), "key too long"),
    "unknown": (wire.op(19), "unknown request"),
    "validate": (wire.validate(), "unknown request"),
}
# what ADD 1 makes of a value, None: the connection is closed and the value stays
ADDED: dict[bytes, int | None] = {
    b"12": 13,
    b" 12": 13,
    b"\t\n\v\f\r 7": 8,
    b"12abc": 13,
    b"12 ": 13,
    b"+5": 6,
    b"-3": -2,
    b"-0": 1,
    b"007": 8,
    b"0x10": 1,
    b"1e3": 2,
    b"1.9": 2,
    b"5\x00abc": 6,
    b"9223372036854775807": -(2**63),  # wraps around
    b"-9223372036854775808": -(2**63) + 1,
    b"": None,
    b" ": None,
    b"abc": None,
    b"-": None,
    b"- 3": None,
    b"+-3": None,
    b"\xa07": None,
    b"\x005": None,
    b"9223372036854775808": None,
    b"-9223372036854775809": None,
    b"99999999999999999999999": None,
}


@pytest.mark.parametrize("case", REFUSED)
def test_beyond_a_limit_only_that_client_is_closed_as_soon_as_it_says_so(server, case):
    request, reason = REFUSED[case]
    other, waiting = server.connect(), server.connect()
    assert waiting.fence() == b""
    waiting.send(wire.keyed(wire.WAIT, [A]))
    assert waiting.fence() == b""
    offender = server.connect()
    offender.send(request)
    assert offender.until_close() == b""
    assert other.ask(wire.op(wire.NUM_KEYS), 8) == wire.i64(0)
    assert waiting.fence() == b""
    if server.ours is not None:
        assert server.refused() == {reason: 1}


def test_what_came_before_an_offence_is_done_and_answered(server):
    offender, other = server.connect(), server.connect()
    offender.send(wire.set_(A, b"1") + wire.add(A, 1) + wire.op(19) + wire.set_(A, b"after"))
    assert offender.until_close() == wire.i64(2)
    assert other.ask(wire.get(A), 9) == wire.text(b"2")


def test_the_longest_key_in_every_place(server):
    key, other = b"k" * 8192, b"o" * 8192
    connection = server.connect()
    connection.send(wire.multi_set([(key, b"1"), (other, b"2")]) + wire.append(key, b"0"))
    assert connection.ask(wire.add(key, 1), 8) == wire.i64(11)
    assert connection.ask(wire.keyed(wire.CHECK, [key, other]), 1) == b"\0"
    assert connection.ask(wire.keyed(wire.MULTI_GET, [other, key]), 19) == wire.text(b"2") + wire.text(b"11")
    assert connection.ask(wire.delete(key), 8) == wire.i64(1)


def test_the_longest_value_in_every_place(server):
    value = b"v" * (8 * MIB)
    connection = server.connect()
    for request in (wire.set_(A, value), wire.append(b"/b", value), wire.compare_set(b"/c", b"", value)):
        connection.send(request)
    assert connection.receive_text() == value
    connection.send(wire.compare_set(b"/c", value, b"short"))
    assert connection.receive_text() == b"short"
    connection.send(wire.queue_push(b"/q", value) + wire.queue_pop(b"/q"))
    assert connection.receive_i64() == 1
    assert connection.receive_text() == value
    connection.send(wire.keyed(wire.MULTI_GET, [A, b"/b"]))
    assert [connection.receive_text() for _ in range(2)] == [value, value]


def test_the_most_keys(server):
    names = [b"%x" % number for number in range(MOST)]
    connection, other = server.connect(), server.connect()
    assert connection.ask(wire.keyed(wire.CHECK, names), 1) == b"\1"
    connection.send(wire.keyed(wire.WAIT, [b"missing"] * MOST))
    assert connection.fence() == b""
    other.send(wire.set_(b"missing", b""))
    assert connection.receive(1) == wire.STOP_WAITING
    assert connection.fence() == b"", "once, however often the key was named"
    assert connection.ask(wire.keyed(wire.MULTI_GET, names), 8 * MOST) == bytes(8 * MOST)


def test_the_most_keys_set_at_once(ours):  # torch's server needs many seconds
    pairs = [(b"%x" % number, b"%d" % number) for number in range(MOST)]
    connection = ours.connect()
    connection.send(wire.multi_set(pairs))
    assert connection.ask(wire.op(wire.NUM_KEYS), 8) == wire.i64(MOST)
    connection.send(wire.keyed(wire.MULTI_GET, [key for key, _ in pairs]))
    assert [connection.receive_text() for _ in pairs] == [value for _, value in pairs]


def test_no_keys_at_all(server):
    connection = server.connect()
    assert connection.ask(wire.keyed(wire.CHECK, []), 1) == b"\0"
    assert connection.ask(wire.keyed(wire.WAIT, []), 1) == wire.STOP_WAITING
    connection.send(wire.keyed(wire.MULTI_GET, []) + wire.multi_set([]))
    assert connection.fence() == b""


@pytest.mark.parametrize("value", ADDED)
def test_add_reads_numbers_as_stoll_does(server, value):
    connection, other = server.connect(), server.connect()
    other.send(wire.set_(A, value))
    assert other.fence() == b""
    connection.send(wire.add(A, 1))
    expected = ADDED[value]
    if expected is None:
        assert connection.until_close() == b""
        assert other.ask(wire.get(A), 8 + len(value)) == wire.text(value)
    else:
        assert connection.receive_i64() == expected
        assert other.ask(wire.get(A), 8 + len(b"%d" % expected)) == wire.text(b"%d" % expected)


@pytest.mark.parametrize("value", [b"word", b"", b"9223372036854775808"])
def test_barrier_at_what_is_no_number_closes(server, value):
    connection, other = server.connect(), server.connect()
    other.send(wire.set_(A, value))
    assert other.fence() == b""
    connection.send(wire.barrier(A, 2))
    assert connection.until_close() == b""
    assert other.ask(wire.get(A), 8 + len(value)) == wire.text(value)


def test_a_woken_client_that_does_not_take_the_item_passes_nothing_on(server: Server):
    """As torch does: the next push is for the next in line, and the item stays."""
    first, second, other = (server.connect() for _ in range(3))
    for waiting in (first, second):
        waiting.send(wire.keyed(wire.WAIT, [A]))
        assert waiting.fence() == b""
    other.send(wire.queue_push(A, b"1"))
    assert other.fence() == b""
    assert first.fence() == wire.STOP_WAITING
    assert second.fence() == b""
    other.send(wire.queue_push(A, b"2"))
    assert other.fence() == b""
    assert first.fence() == b""
    assert second.fence() == wire.STOP_WAITING
    assert other.ask(wire.queue_len(A), 8) == wire.i64(2)
