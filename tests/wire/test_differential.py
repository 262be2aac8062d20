"""Our server, also behind proxies, and torch's run the same random programs, and answer alike to the byte, the listed
differences aside.

Each is compared to a model of its own; where the models say the same, so do the servers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, example, given, settings
from kits.wire.programs import KEYS, Seen, Step, empty, on_model, on_server, programs
from kits.wire.store_model import LibUvStore, NodesTakeTurns, Store
from kits.wire.store_servers import Server, running


def told(program: list[Step], one: list[Seen], other: list[Seen]) -> str:
    """The program up to where they part."""
    lines = []
    for (connection, request), a, b in zip(program, one, other, strict=True):
        lines.append(f"{connection}: {request} -> {a}")
        if a != b:
            return "\n".join([*lines, f"   and not {b}"])
    return "\n".join(lines)


@pytest.fixture(scope="module")
def server_of() -> Iterator[Callable[[str], Server]]:
    """The server of a kind, which stays for the other programs."""
    with ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(running(kind)))


def compare(server: Server, program: list[Step]) -> None:
    model = NodesTakeTurns(len(server.ports)) if server.proxies else Store() if server.ours else LibUvStore()
    expected, seen = on_model(model, program), on_server(server, program)
    empty(server, KEYS)
    assert seen == expected, told(program, seen, expected)


RANDOM = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SHARED_KEY = [(0, ("wait", [b"/a", b"/b"])), (1, ("wait", [b"/a"])), (2, ("queue_push", b"/a", b"x"))]
NAMED_TWICE = [(0, ("wait", [b"/a", b"/a"])), (1, ("queue_push", b"/a", b"x"))]
OWN_WAIT = [(0, ("wait", [b"/a"])), (0, ("add", b"/a", 1)), (0, ("barrier", b"/a", 3))]


@settings(RANDOM, max_examples=40)
@given(program=programs())
@example(program=SHARED_KEY)
@example(program=NAMED_TWICE)
@example(program=OWN_WAIT)
def test_same_programs_same_bytes(server_of, program):
    for kind in ("threads=1", "threads=4", "torch"):
        compare(server_of(kind), program)


@settings(RANDOM, max_examples=12)
@given(program=programs())
@example(program=SHARED_KEY)
@example(program=NAMED_TWICE)
@example(program=OWN_WAIT)
def test_same_bytes_through_proxies(server_of, program):
    """As one store, but that nodes take turns at a queue."""
    for kind in ("proxies", "tiers"):
        compare(server_of(kind), program)


@pytest.mark.thorough
@settings(RANDOM, max_examples=350)
@given(program=programs())
def test_many_programs(server_of, program):
    """Between threads: they have found an item that was pushed to who had gone, a moment before his loop saw it."""
    compare(server_of("threads=4"), program)


@pytest.mark.thorough
@settings(RANDOM, max_examples=100)
@given(program=programs())
def test_many_programs_through_proxies(server_of, program):
    for kind in ("proxies", "tiers"):
        compare(server_of(kind), program)
