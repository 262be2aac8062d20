"""What a store has to answer: ``Store`` is ours, ``LibUvStore`` is torch 2.13's libuv server with its faults.

A request is a tuple, its name first; ``encode`` puts it on the wire. ``run`` executes it for a connection
and appends to ``out[connection]`` the bytes that every connection gets. Where the two classes differ is a difference
that we chose, and only there: each method of ``LibUvStore`` says which one.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

from kits.wire import wire_client as wire

Request = tuple[Any, ...]
NUMBER = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)")
LOW, HIGH = -(2**63), 2**63 - 1


def encode(request: Request) -> bytes:
    name, *arguments = request
    match name:
        case "refused":  # bytes that a server hangs up on at once
            return bytes(arguments[0])
        case "check" | "wait" | "multi_get":
            return wire.keyed(getattr(wire, name.upper()), *arguments)
        case "num_keys" | "cancel_wait" | "list_keys":
            return wire.op(getattr(wire, name.upper()))
    return bytes(getattr(wire, "set_" if name == "set" else name)(*arguments))


def leading_number(value: bytes) -> int | None:
    """As C++'s std::stoll reads it; None where that throws."""
    match = NUMBER.match(value)
    number = int(match[1]) if match else None
    return number if number is not None and LOW <= number <= HIGH else None


def wrapped(number: int) -> int:
    return (number - LOW) % 2**64 + LOW


def key_list(keys: list[bytes]) -> bytes:
    """A LIST_KEYS reply; its order means nothing, so here it is sorted."""
    return wire.i64(len(keys)) + b"".join(wire.text(key) for key in sorted(keys))


@dataclass
class Wait:
    connection: int
    missing: list[bytes]
    threshold: int | None = None  # a barrier's world size


class Store:
    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.queues: defaultdict[bytes, deque[bytes]] = defaultdict(deque)
        self.waits: list[Wait] = []  # in the order they came
        self.out: defaultdict[int, bytes] = defaultdict(bytes)
        self.closed: set[int] = set()

    def run(self, connection: int, request: Request) -> None:
        name, *arguments = request
        before = self.out[connection]
        reply = getattr(self, f"on_{name}")(connection, *arguments) or b""
        released = self.out[connection][len(before) :]
        self.out[connection] = before + self.answer(reply, released)

    def answer(self, reply: bytes, released: bytes) -> bytes:
        """What a connection gets for a request that has released waits of its own."""
        return reply + released

    def present(self, key: bytes) -> bool:
        return key in self.values or bool(self.queues[key])

    # Requests: each returns what its own connection gets, after whatever was sent there meanwhile.

    def on_set(self, _: int, key: bytes, value: bytes) -> None:
        self.values[key] = value
        self.written(key)

    def on_append(self, connection: int, key: bytes, value: bytes) -> None:
        self.on_set(connection, key, self.values.get(key, b"") + value)

    def on_multi_set(self, connection: int, pairs: list[tuple[bytes, bytes]]) -> None:
        for key, value in pairs:
            self.on_set(connection, key, value)

    def on_get(self, _: int, key: bytes) -> bytes:
        return wire.text(self.values.get(key, b""))

    def on_multi_get(self, connection: int, keys: list[bytes]) -> bytes:
        return b"".join(self.on_get(connection, key) for key in keys)

    def on_add(self, connection: int, key: bytes, delta: int) -> bytes | None:
        count = self.added(connection, key, delta)
        return None if count is None else wire.i64(count)

    def added(self, connection: int, key: bytes, delta: int, write: bool = True) -> int | None:
        before = leading_number(self.values.get(key, b"0"))
        if before is None:
            return self.close(connection)
        count = wrapped(before + delta)
        self.values[key] = b"%d" % count
        if write:
            self.written(key)
        return count

    def on_compare_set(self, connection: int, key: bytes, expected: bytes, desired: bytes) -> bytes:
        exists = key in self.values
        if self.values.get(key, b"") == expected:
            self.on_set(connection, key, desired)
        elif not exists:
            self.refused_compare_set(key)
            return wire.text(expected)
        else:
            self.refused_compare_set(key)
        return wire.text(self.values[key])

    def on_delete(self, _: int, key: bytes) -> bytes:
        return wire.i64(self.values.pop(key, None) is not None)

    def on_num_keys(self, _: int) -> bytes:
        return wire.i64(len(self.values))

    def on_list_keys(self, _: int) -> bytes:
        return key_list(list(self.values))

    def on_check(self, _: int, keys: list[bytes]) -> bytes:
        return b"\0" if all(map(self.present, keys)) else b"\1"

    def on_queue_push(self, _: int, key: bytes, value: bytes) -> None:
        self.queues[key].append(value)
        self.pushed(key)

    def on_queue_pop(self, _: int, key: bytes) -> bytes:
        queue = self.queues[key]
        return wire.i64(len(queue)) + (wire.text(queue.popleft()) if queue else b"")

    def on_queue_len(self, _: int, key: bytes) -> bytes:
        return wire.i64(len(self.queues[key]))

    def on_refused(self, connection: int, _: bytes) -> None:
        self.close(connection)

    def close(self, connection: int) -> None:
        self.closed.add(connection)
        self.forget(connection)

    # Waiting: where torch differs.

    def on_wait(self, connection: int, keys: list[bytes]) -> bytes | None:
        missing = [key for key in keys if not self.present(key)]
        if not missing:
            return wire.STOP_WAITING
        self.waits.append(Wait(connection, missing))
        return None

    def on_cancel_wait(self, connection: int) -> bytes:
        self.forget(connection)
        return wire.WAIT_CANCELED

    def forget(self, connection: int) -> None:
        self.waits = [wait for wait in self.waits if wait.connection != connection]

    def on_barrier(self, connection: int, key: bytes, world_size: int) -> bytes | None:
        count = self.added(connection, key, 1)
        if count is not None and count < world_size:
            self.waits.append(Wait(connection, [key], world_size))
            return None
        return None if count is None else wire.STOP_WAITING

    def written(self, key: bytes) -> None:
        """Every wait for the key is a key shorter; a barrier's only if as many have arrived."""
        count = leading_number(self.values[key])
        for wait in list(self.waits):
            if wait.threshold is None or (count is not None and count >= wait.threshold):
                self.tick(wait, key)

    def pushed(self, key: bytes) -> None:
        """An item is for one: on through the line until somebody misses nothing more."""
        for wait in list(self.waits):
            if wait.threshold is None and self.tick(wait, key):
                return

    def tick(self, wait: Wait, key: bytes) -> bool:
        before, wait.missing = wait.missing, [name for name in wait.missing if name != key]
        if wait.missing or not before:
            return False
        self.waits.remove(wait)
        self.out[wait.connection] += wire.STOP_WAITING
        return True

    def refused_compare_set(self, key: bytes) -> None:
        """Nothing was written, so nobody is told."""


class NodesTakeTurns(Store):
    """What proxies make of a queue: a push wakes the first node in line, whose own line decides who of it is served.

    A node that was woken goes to the end, and leaves the line with the last of its waits.
    """

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.lines: defaultdict[bytes, list[int]] = defaultdict(list)

    def run(self, connection: int, request: Request) -> None:
        super().run(connection, request)
        for key, line in self.lines.items():
            self.lines[key] = [node for node in line if self.waiting_on(node, key)]

    def waiting_on(self, node: int, key: bytes) -> list[Wait]:
        waits = [wait for wait in self.waits if wait.connection % self.nodes == node and wait.threshold is None]
        return [wait for wait in waits if key in wait.missing]

    def on_wait(self, connection: int, keys: list[bytes]) -> bytes | None:
        answer = super().on_wait(connection, keys)
        for key in keys if answer is None else ():
            if not self.present(key) and connection % self.nodes not in self.lines[key]:
                self.lines[key].append(connection % self.nodes)
        return answer

    def pushed(self, key: bytes) -> None:
        for node in list(self.lines[key]):
            self.lines[key].remove(node)
            self.lines[key].append(node)
            if any(self.tick(wait, key) for wait in self.waiting_on(node, key)):
                return


class LibUvStore(Store):
    """One counter per connection, one list of connections per key, and neither is ever tidied up."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited: defaultdict[int, int] = defaultdict(int)
        self.waiting: dict[bytes, list[int]] = {}

    def answer(self, reply: bytes, released: bytes) -> bytes:
        """The WAITs that a request released on its own connection come before its reply."""
        return released + reply

    def on_wait(self, connection: int, keys: list[bytes]) -> bytes | None:
        """Counts the keys without a value, also those with a queue, and forgets an earlier count."""
        if all(map(self.present, keys)):
            return wire.STOP_WAITING
        missing = [key for key in keys if key not in self.values]
        for key in missing:
            self.waiting.setdefault(key, []).append(connection)
        self.awaited[connection] = len(missing)
        return None

    def forget(self, connection: int) -> None:
        self.awaited.pop(connection, None)
        for key, line in list(self.waiting.items()):
            self.waiting[key] = [other for other in line if other != connection]
            if not self.waiting[key]:
                del self.waiting[key]

    def on_barrier(self, connection: int, key: bytes, world_size: int) -> bytes | None:
        """Who completes his own size releases all, and who waits for the key alone is not told of arrivals."""
        count = self.added(connection, key, 1, write=False)
        if count is None:
            return None
        if count >= world_size:
            self.written(key)
            return wire.STOP_WAITING
        self.waiting.setdefault(key, []).append(connection)
        self.awaited[connection] = 1
        return None

    def written(self, key: bytes) -> None:
        """A barrier's waiter is one of a key like any other: any write releases it."""
        for connection in self.waiting.pop(key, []):
            self.count_down(connection)

    def pushed(self, key: bytes) -> None:
        """Who was released stays in line, and so does who misses another key, for which pushes count."""
        for connection in self.waiting.get(key, []):
            if self.count_down(connection):
                return

    def count_down(self, connection: int) -> bool:
        self.awaited[connection] -= 1
        if self.awaited[connection] == 0:
            self.out[connection] += wire.STOP_WAITING
        return self.awaited[connection] == 0

    def refused_compare_set(self, key: bytes) -> None:
        """Waiters of the key are told."""
        self.written(key)
