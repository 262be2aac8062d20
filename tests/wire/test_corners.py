"""Limits to the byte, and numbers in values: the same on torch's libuv server and ours."""

from __future__ import annotations

import pytest
from kits.wire import wire_client as wire
from kits.wire.wire_client import op, text, u64

A = b"/a"
MIB = 2**20
MOST = 131_072  # keys in one request

REFUSED = {
    "key too long": [
        op(wire.GET, u64(8193)),
        op(wire.CHECK, u64(2), text(A), u64(8193)),
        op(wire.SET, u64(2**64 - 1)),
    ],
    "value too long": [
        *[op(code, text(A), u64(8 * MIB + 1)) for code in (wire.SET, wire.APPEND, wire.COMPARE_SET, wire.QUEUE_PUSH)],
        op(wire.COMPARE_SET, text(A), text(b""), u64(8 * MIB + 1)),
    ],
    "too many keys": [
        *[op(code, u64(MOST + 1)) for code in (wire.CHECK, wire.WAIT, wire.MULTI_GET, wire.MULTI_SET)],
        op(wire.MULTI_SET, wire.i64(-1)),
    ],
    "unknown request": [op(19), wire.validate()],
}
# what ADD 1 makes of a value; the largest number wraps around
ADDED = (
    {b"12": 13, b" 12": 13, b"\t\n\v\f\r 7": 8, b"12abc": 13, b"12 ": 13, b"+5": 6, b"-3": -2, b"-0": 1, b"007": 8}
    | {b"0x10": 1, b"1e3": 2, b"1.9": 2, b"5\x00abc": 6}
    | {b"9223372036854775807": -(2**63), b"-9223372036854775808": -(2**63) + 1}
)
NO_NUMBERS = [
    *(b"", b" ", b"abc", b"-", b"- 3", b"+-3", b"\xa07", b"\x005"),
    *(b"9223372036854775808", b"-9223372036854775809", b"99999999999999999999999"),
]


def test_beyond_a_limit_only_that_client_is_closed_as_soon_as_it_says_so(server):
    other, waiting = server.connect(), server.connect()
    waiting.do(wire.keyed(wire.WAIT, [A]))
    for request in (each for requests in REFUSED.values() for each in requests):
        with server.connect() as offender:
            offender.send(request)
            assert offender.until_close() == b"", request
    assert other.ask(op(wire.NUM_KEYS), 8) == wire.i64(0)
    assert waiting.fence() == b""
    if server.ours is not None:
        assert server.refused() == {reason: len(requests) for reason, requests in REFUSED.items()}


def test_what_came_before_an_offence_is_done_and_answered(server):
    offender, other = server.connect(), server.connect()
    offender.send(wire.set_(A, b"1") + wire.add(A, 1) + op(19) + wire.set_(A, b"after"))
    assert offender.until_close() == wire.i64(2)
    assert other.ask(wire.get(A), 9) == text(b"2")


def test_the_longest_key_in_every_place(server):
    key, other = b"k" * 8192, b"o" * 8192
    connection = server.connect()
    connection.send(wire.multi_set([(key, b"1"), (other, b"2")]) + wire.append(key, b"0"))
    assert connection.ask(wire.add(key, 1), 8) == wire.i64(11)
    assert connection.ask(wire.keyed(wire.CHECK, [key, other]), 1) == b"\0"
    assert connection.ask(wire.keyed(wire.MULTI_GET, [other, key]), 19) == text(b"2") + text(b"11")
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


def test_the_most_keys(ours):  # torch's server needs many seconds
    names = [b"%x" % number for number in range(MOST)]
    connection, other = ours.connect(), ours.connect()
    assert connection.ask(wire.keyed(wire.CHECK, names), 1) == b"\1"
    connection.do(wire.keyed(wire.WAIT, [b"missing"] * MOST))
    other.send(wire.set_(b"missing", b""))
    assert connection.receive(1) == wire.STOP_WAITING
    assert connection.fence() == b"", "once, however often the key was named"
    assert connection.ask(wire.keyed(wire.MULTI_GET, names), 8 * MOST) == bytes(8 * MOST)
    connection.send(wire.multi_set((name, b"%d" % number) for number, name in enumerate(names)))
    assert connection.ask(op(wire.NUM_KEYS), 8) == wire.i64(MOST + 1)
    connection.send(wire.keyed(wire.MULTI_GET, names))
    assert [connection.receive_text() for _ in names] == [b"%d" % number for number in range(MOST)]


def test_add_reads_numbers_as_stoll_does(server):
    connection, other = server.connect(), server.connect()
    for value, expected in ADDED.items():
        other.do(wire.set_(A, value))
        assert connection.ask(wire.add(A, 1), 8) == wire.i64(expected), value
        assert other.get(A) == b"%d" % expected


@pytest.mark.parametrize("counting", [wire.add(A, 1), wire.barrier(A, 2)], ids=["add", "barrier"])
def test_counting_on_from_what_is_no_number_closes(server, counting):
    other = server.connect()
    for value in NO_NUMBERS:
        other.do(wire.set_(A, value))
        with server.connect() as connection:
            connection.send(counting)
            assert connection.until_close() == b"", value
        assert other.get(A) == value
