"""Random programs of Store calls through torch's own client: the same results on our server and on torch's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.wire.programs import KEYS, empty
from kits.wire.store_model import leading_number
from kits.wire.store_servers import PLAIN, PROXIED, Server, lifeline, running
from torch.distributed import DistError, DistNetworkError, PrefixStore, TCPStore

pytestmark = pytest.mark.thorough

SOON, LATE = timedelta(milliseconds=5), timedelta(seconds=60)
NEVER = 2**62  # a world size
NAMES = [key.decode().removeprefix("/") for key in KEYS]
name = st.sampled_from(NAMES)
names = st.lists(name, max_size=4)
value = st.sampled_from([b"", b"1", b"2", b"x", b"-7", b"\x00\xff"])
CALLS = st.one_of(
    *[
        st.tuples(st.just(method), *arguments)
        for method, *arguments in (
            ("set", name, value),
            ("get", name),
            ("add", name, st.integers(-3, 3)),
            ("check", names),
            ("wait", names),
            ("compare_set", name, value, value),
            ("delete_key", name),
            ("num_keys",),
            ("append", name, value),
            ("multi_get", names),
            ("multi_set", st.lists(st.tuples(name, value), max_size=3)),
            ("queue_push", name, value),
            ("queue_push", name, value),
            ("queue_pop", name, st.booleans()),
            ("queue_len", name),
            ("list_keys",),
            ("barrier", name, st.sampled_from([-NEVER, NEVER])),
        )
    ]
)
CALL = st.tuples(st.booleans(), CALLS)  # with a prefix or without
PROGRAMS = st.integers(2, 40).flatmap(lambda size: st.lists(CALL, min_size=size, max_size=size))


def started(stack: ExitStack, kinds: Iterable[str]) -> dict[str, Server]:
    servers = {kind: stack.enter_context(running(kind)) for kind in kinds}
    for server in servers.values():
        stack.enter_context(lifeline(server, 840))
    return servers


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        yield started(stack, PLAIN)


@pytest.fixture(scope="module")
def proxied() -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        yield started(stack, [*PROXIED, "threads=1"])


def call(store: TCPStore | PrefixStore, method: str, arguments: list[Any]) -> Any:
    """The value, or the name of the exception."""
    if method == "multi_set":
        arguments = [list(column) for column in zip(*arguments[0], strict=True)] or [[], []]
    try:
        result = getattr(store, method)(*arguments)
    except DistError as error:
        if isinstance(error, DistNetworkError):
            raise
        return type(error).__name__
    if method == "list_keys":
        return sorted(result)
    return result


def is_number(store: TCPStore, key: str) -> bool:
    """What is no number closes the connection; nothing is one. Asked in a way that changes and awaits nothing."""
    return leading_number(store.compare_set(key, "0 if there is nothing", "")) is not None


def on_server(server: Server, program: list[tuple[bool, tuple[Any, ...]]]) -> list[Any]:
    """What each call returned or raised. A call that will be answered has all the time it needs."""
    results: list[Any] = []
    store = TCPStore("127.0.0.1", server.next_port(), wait_for_workers=False)
    for prefixed, (method, *arguments) in program:
        # a PrefixStore's barrier is another one: an add, and a wait that a later call may find missing
        view = PrefixStore("p", store) if prefixed and method != "barrier" else store
        if method in ("get", "wait", "multi_get", "queue_pop"):
            keys = arguments[0] if method in ("wait", "multi_get") else arguments[:1]
            timeout = LATE if view.check(keys) else SOON
        else:
            timeout = SOON if arguments[-1:] == [NEVER] and is_number(store, arguments[0]) else LATE
        store.set_timeout(timeout)
        if method in ("wait", "barrier"):
            arguments.append(timeout)
        try:
            results.append(call(view, method, arguments))
        except DistNetworkError:  # a number that is none
            results.append("closed")
            store = TCPStore("127.0.0.1", server.next_port(), wait_for_workers=False)
    store.num_keys()  # answered: what was not, is done too
    return results


def results(servers: dict[str, Server], program: list[tuple[bool, tuple[Any, ...]]]) -> dict[str, list[Any]]:
    results = {}
    for kind, server in servers.items():
        results[kind] = on_server(server, program)
        empty(server, [(prefix + key).encode() for key in NAMES for prefix in ("/", "/p/")])
    return results


RANDOM = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.timeout(900)  # beside other work
@settings(RANDOM, max_examples=200)
@given(program=PROGRAMS)
def test_same_calls_same_results(servers, program):
    seen = results(servers, program)
    assert seen["threads=1"] == seen["torch"]
    assert seen["threads=4"] == seen["torch"]


@pytest.mark.timeout(900)
@settings(RANDOM, max_examples=100)
@given(program=PROGRAMS)
def test_same_results_through_proxies(proxied, program):
    seen = results(proxied, program)
    for kind in PROXIED:
        assert seen[kind] == seen["threads=1"], kind
