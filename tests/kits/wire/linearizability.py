"""Is a history of one register linearizable? A search after Wing & Gong, with Lowe's memory of places it was at before.

A register holds bytes, or nothing. An operation took effect at one moment between its ``begin`` and its ``end``; a
history is linearizable if moments can be chosen so that every result is what a store on one thread would have said.
Keys are independent of each other, so each is judged alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """``end`` is infinite where nothing tells that it was done; ``result`` None where the wire has no answer.

    Operations of one ``client`` took effect in the order in which they are listed; those of None in any.
    """

    name: str
    arguments: tuple[bytes | int, ...]
    result: bytes | int | None
    begin: float
    end: float = math.inf
    key: bytes = b""
    client: int | None = None


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
    # what is not in here may never have happened
    required = sum(1 << index for index, operation in enumerate(operations) if operation.end < math.inf)
    # Depth first: (which are done, state), and where to go on among those that may be next.
    done, state, position = 0, None, 0
    been: set[tuple[int, State]] = set()
    path: list[tuple[int, State, int]] = []
    while True:
        if done & required == required:
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
    clients: set[int | None] = set()
    first_end = math.inf
    first_left = (~done & done + 1).bit_length() - 1
    for index in range(first_left, len(operations)):
        operation = operations[index]
        if operation.begin > first_end:
            break
        if not done >> index & 1:
            if operation.client is None or operation.client not in clients:
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
