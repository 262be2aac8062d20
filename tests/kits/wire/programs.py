"""Random programs of raw requests from a few connections, and what came of them on a server or a model."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache

from hypothesis import strategies as st

from kits.wire import wire_client as wire
from kits.wire.store_model import Request, Store, encode, key_list
from kits.wire.store_servers import Server

CONNECTIONS = 3
KEYS = [b"/a", b"/b", b"/c", b"plain", b""]  # few, so that they meet
VALUES = [b"", b"1", b"2", b"x", b" 7", b"-2z", b"\x00\xff", b"9223372036854775807"]
REFUSED = [
    wire.op(19),
    wire.op(255),
    wire.op(wire.GET, wire.u64(8193)),
    wire.op(wire.SET, wire.text(b"/a"), wire.u64(8 * 2**20 + 1)),
    wire.op(wire.CHECK, wire.u64(131073)),
    wire.op(wire.MULTI_SET, wire.i64(-1)),
]

Step = tuple[int, Request]  # which connection asks what


# Requests that have to do with each other: at random from all, they hardly ever meet.
THEMES = {
    "values": "set get add append compare_set delete multi_get multi_set check num_keys list_keys",
    "waits": "wait wait wait set add append multi_set compare_set delete cancel_wait check",
    "queues": "wait wait wait wait queue_push queue_push queue_pop queue_pop queue_len set delete num_keys list_keys",
    "cancelled": "wait wait barrier queue_push set cancel_wait refused",
    "barriers": "barrier barrier barrier wait set add compare_set append delete get",
    "anything": "",
}


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """On one theme, and on few keys."""
    keys = draw(st.sampled_from([1, 2, 2, 3, len(KEYS)]))
    step = steps(keys, draw(st.sampled_from(sorted(THEMES))))
    size = draw(st.integers(2, 40))
    return draw(st.lists(step, min_size=size, max_size=size))


@cache  # half of the time of a program is the making of these
def steps(first: int, theme: str) -> st.SearchStrategy[Step]:
    """Steps on one theme, and on so many keys."""
    key = st.sampled_from(KEYS[:first])
    keys = st.lists(key, max_size=4)
    value = st.sampled_from(VALUES)
    small = st.sampled_from([b"", b"1", b"x"])
    kinds = {
        "set": (key, value),
        "compare_set": (key, small, small),
        "get": (key,),
        "add": (key, st.sampled_from([0, 1, 2, -1, 2**63 - 1])),
        "check": (keys,),
        "wait": (st.one_of(st.lists(key, min_size=1, max_size=3), keys),),
        "num_keys": (),
        "delete": (key,),
        "append": (key, value),
        "multi_get": (keys,),
        "multi_set": (st.lists(st.tuples(key, value), max_size=3),),
        "cancel_wait": (),
        "queue_push": (key, value),
        "queue_pop": (key,),
        "queue_len": (key,),
        "list_keys": (),
        "barrier": (key, st.sampled_from([2, 2, 2, 3, 1, 0, -1])),
        "refused": (st.sampled_from(REFUSED),),
    }
    requests = {name: st.tuples(st.just(name), *arguments) for name, arguments in kinds.items()}
    request = st.sampled_from(THEMES[theme].split() or sorted(kinds)).flatmap(requests.__getitem__)
    return st.tuples(st.integers(0, CONNECTIONS - 1), request)


@dataclass(frozen=True)
class Seen:
    """What one step did: the bytes that each connection got, and which were closed."""

    got: dict[int, bytes]
    closed: frozenset[int] = field(default_factory=frozenset)


def on_model(model: Store, program: list[Step]) -> list[Seen]:
    history = []
    for connection, request in program:
        if connection in model.closed:
            history.append(Seen({}))
            continue
        before = set(model.closed)
        model.run(connection, request)
        got = {who: data for who, data in model.out.items() if data}
        model.out.clear()
        history.append(Seen(got, frozenset(model.closed - before)))
    return history


def on_server(server: Server, program: list[Step]) -> list[Seen]:
    """Step by step: after each, a PING on every connection, the one that asked first. Whatever the step released has to
    come before the answer to that, on any thread: nobody may hear of something later earlier.

    Behind proxies that goes for requests, but the end of a wait may need the root's word once or twice more: who has
    begun to wait while it was under way, or is next in line when somebody has gone, is told by the next one.
    """
    turns = 1 + 2 * server.tiers
    connections = {number: server.connect(number) for number in range(CONNECTIONS)}
    try:
        history = []
        for asking, request in program:
            if asking not in connections:
                history.append(Seen({}))
                continue
            connections[asking].send(encode(request))
            got: dict[int, bytes] = {}
            closed = set()
            for number in turns * [asking, *sorted(connections.keys() - {asking})]:
                if number not in connections:
                    continue
                try:
                    data = connections[number].fence()
                except wire.Closed as end:
                    data = end.args[0]
                    closed.add(number)
                    connections.pop(number).close()
                if data:
                    got[number] = got.get(number, b"") + data
            if request[0] == "list_keys":
                got[asking] = in_order(got[asking])
            history.append(Seen(got, frozenset(closed)))
        clean(connections)
        return history
    finally:
        for connection in connections.values():
            connection.close()


def in_order(reply: bytes) -> bytes:
    """A LIST_KEYS reply with its keys sorted."""
    keys, rest = read_keys(reply)
    return key_list(keys) + rest


def read_keys(reply: bytes) -> tuple[list[bytes], bytes]:
    """The keys of a LIST_KEYS reply, and what came after it."""
    (count,) = struct.unpack_from("=q", reply)
    keys, rest = [], reply[8:]
    for _ in range(count):
        end = 8 + struct.unpack_from("=Q", rest)[0]
        keys.append(rest[8:end])
        rest = rest[end:]
    return keys, rest


def clean(connections: dict[int, wire.Raw]) -> None:
    """No waits, while the connections are there, for a server takes its time to notice that they are gone."""
    for connection in connections.values():
        connection.send(wire.op(wire.CANCEL_WAIT))
        assert connection.fence() == wire.WAIT_CANCELED


def empty(server: Server, queues: list[bytes]) -> None:
    """Nothing in the store, on torch's server too, which cannot be wiped."""
    with server.connect() as connection:
        connection.send(wire.op(wire.LIST_KEYS))
        for key in read_keys(connection.fence())[0]:
            connection.ask(wire.delete(key), 8)
        for key in queues:
            connection.send(wire.queue_pop(key))
            while connection.receive_i64() > 0:
                connection.receive_text()
                connection.send(wire.queue_pop(key))
        assert connection.ask(wire.op(wire.NUM_KEYS), 8) == wire.i64(0)
