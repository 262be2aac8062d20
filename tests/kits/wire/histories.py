"""What clients of raw requests have seen, and when; and is a history of one register linearizable?

A search after Wing & Gong, with Lowe's memory of places it was at before. A register holds bytes, or nothing. An
operation took effect at one moment between its ``begin`` and its ``end``; a history is linearizable if moments can be
chosen so that every result is what a store on one thread would have said. Keys are independent of each other, so each
is judged alone."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

from kits.wire import wire_client as wire


@dataclass(frozen=True)
class Operation:
    """``result`` is None where the wire has no answer. A client's took effect in the order in which they are listed."""

    name: str
    arguments: tuple[bytes | int, ...]
    result: bytes | int | None
    begin: int
    end: int
    key: bytes
    client: int


State = bytes | None  # of a register; None: never set


class Impossible(Exception):
    """The operation cannot have had this result in this state."""


def apply(state: State, operation: Operation) -> State:
    """The state afterwards. Raises ``Impossible``."""
    match operation.name, operation.arguments:
        case "set", (bytes(value),):
            return value
        case "append", (bytes(value),):
            return (state or b"") + value
        case "get", ():
            expected: bytes | int = state or b""
            after = state
        case "check", ():
            expected, after = int(state is None), state
        case "delete", ():
            expected, after = int(state is not None), None
        case "add", (int(delta),):
            expected = int(state or b"0") + delta
            after = b"%d" % expected
        case "compare_set", (bytes(old), bytes(new)):
            if state is None and old:
                expected, after = old, None  # torch's answer, though there is nothing
            else:
                expected = after = new if (state or b"") == old else state or b""
        case _:
            raise ValueError(operation)
    if operation.result != expected:
        raise Impossible
    return after


def linearizable(history: Iterable[Operation]) -> bool:
    """For operations of one key."""
    operations = sorted(history, key=lambda operation: operation.begin)
    # Depth first: (which are done, state), and where to go on among those that may be next.
    done, state, position = 0, None, 0
    been: set[tuple[int, State]] = set()
    path: list[tuple[int, State, int]] = []
    while True:
        if done == (1 << len(operations)) - 1:
            return True
        found = False
        for index in _next(operations, done):
            if index < position:
                continue
            try:
                after = apply(state, operations[index])
            except Impossible:
                continue
            place = (done | 1 << index, after)
            if place not in been:
                been.add(place)
                path.append((done, state, index + 1))
                (done, state), position = place, 0
                found = True
                break
        if not found:
            if not path:
                return False
            done, state, position = path.pop()


def _next(operations: list[Operation], done: int) -> list[int]:
    """Those that may come next: not done, begun before any other of those ended, their client's first. Ascending."""
    candidates = []
    clients = set()
    first_end = math.inf
    first_left = (~done & done + 1).bit_length() - 1
    for index in range(first_left, len(operations)):
        operation = operations[index]
        if operation.begin > first_end:
            break
        if not done >> index & 1:
            if operation.client not in clients:
                candidates.append(index)
            clients.add(operation.client)
            first_end = min(first_end, operation.end)
    return candidates


def violations(history: Iterable[Operation]) -> list[bytes]:
    """The keys whose operations are not linearizable."""
    by_key = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    return sorted(key for key, operations in by_key.items() if not linearizable(operations))


Entry = tuple[str, tuple[bytes | int, ...], bytes]
"""An operation, its arguments and its request."""


def anything(dice: random.Random, key: bytes, word: bytes, known: dict[bytes, bytes]) -> Entry:
    """Every other key holds numbers, the others texts."""
    counter = key[-1] % 2 == 0
    value = b"%d" % dice.randrange(1000) if counter else word
    name = dice.choice(["set", "get", "get", "compare_set", "compare_set", *(["add"] * 3 if counter else ["append"])])
    if name == "get":
        return name, (), wire.get(key)
    if name == "add":
        delta = dice.randint(-5, 5)
        return name, (delta,), wire.add(key, delta)
    if name == "compare_set":
        old = known.get(key, b"")
        return name, (old, value), wire.compare_set(key, old, value)
    return name, (value,), (wire.set_ if name == "set" else wire.append)(key, value)


def what_is_kept(dice: random.Random, key: bytes, word: bytes, _: dict[bytes, bytes]) -> Entry:
    """Of values that only SET writes, which a proxy keeps: they are read more often than written."""
    (name,) = dice.choices(["set", "get", "check", "delete"], [10, 70, 16, 4])
    if name == "set":
        return name, (word,), wire.set_(key, word)
    request = {"get": wire.get, "delete": wire.delete, "check": lambda key: wire.keyed(wire.CHECK, [key])}[name](key)
    return name, (), request


def answer(connection: wire.Raw, name: str) -> bytes | int:
    if name == "check":
        return connection.receive(1)[0]
    return connection.receive_i64() if name in ("add", "delete") else connection.receive_text()


def recorded(
    ports: Sequence[int],
    clients: int,
    batches: int,
    size: int,
    keys: int,
    choose: Callable[[random.Random, bytes, bytes, dict[bytes, bytes]], Entry] = anything,
) -> list[Operation]:
    """What that many clients have seen of ``batches`` times ``size`` requests each, which are sent at once."""
    together = Barrier(clients)

    def run(client: int) -> list[Operation]:
        dice, known, done = random.Random(client), dict[bytes, bytes](), list[Operation]()
        with wire.Raw(ports[client % len(ports)]) as connection:
            together.wait(wire.PATIENCE)
            for batch in range(batches):
                asked = []
                for place in range(size):
                    key = b"/key%d" % dice.randrange(keys)
                    asked.append((key, *choose(dice, key, b"<%d.%d.%d>" % (client, batch, place), known)))
                begin = time.monotonic_ns()
                connection.send(b"".join(request for *_, request in asked))
                for key, name, arguments, _ in asked:
                    # a write has no answer: it was done by the time that something after it is
                    result = None if name in ("set", "append") else answer(connection, name)
                    if isinstance(result, (bytes, int)):
                        known[key] = result if isinstance(result, bytes) else b"%d" % result
                    done.append(Operation(name, arguments, result, begin, time.monotonic_ns(), key, client))
            connection.fence()
        end = time.monotonic_ns()
        for number in reversed(range(len(done))):
            if done[number].result is None:
                done[number] = dataclasses.replace(done[number], end=end)
            end = done[number].end
        return done

    with ThreadPoolExecutor(clients) as pool:
        return [each for history in pool.map(run, range(clients)) for each in history]
