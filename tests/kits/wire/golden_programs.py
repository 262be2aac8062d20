"""What torch's own client was asked to do for each golden transcript.

``PYTHONPATH=tests python -m kits.wire.golden_programs`` records them anew.

To be done, and the difference looked at, when test_golden.py says that a new torch speaks otherwise.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistStoreError, PrefixStore, QueueEmptyError, TCPStore

from kits import TESTS
from kits.wire import wire_client as wire
from kits.wire.store_servers import running
from kits.wire.transcripts import Relay, render

GOLDEN = TESTS / "wire" / "golden"
SOON = timedelta(milliseconds=50)
Program = Callable[[Relay], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def connect(relay: Relay, **options: Any) -> TCPStore:
    return TCPStore("127.0.0.1", relay.port, **({"wait_for_workers": False} | options))


def fails(error: type[Exception], call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{call} did not raise {error}")


@program
def handshake(relay: Relay) -> None:
    """Connect as one of two workers, and clone: the clone is no further worker."""
    store = connect(relay, world_size=2, wait_for_workers=True)
    store.clone()


@program
def set_get(relay: Relay) -> None:
    """A value, an empty one, and all that a byte can be."""
    store = connect(relay)
    store.set("k", "v")
    store.get("k")
    store.set("", b"")
    store.get("")
    store.set("bytes", bytes(range(0, 256, 15)))
    store.get("bytes")


@program
def add(relay: Relay) -> None:
    """Numbers go as i64, and are stored as decimal text."""
    store = connect(relay)
    store.add("n", 5)
    store.add("n", -7)
    store.get("n")
    store.add("zero", 0)


@program
def check_wait(relay: Relay) -> None:
    """A wait that times out is cancelled by the client."""
    store = connect(relay)
    store.set("k", "v")
    store.check(["k"])
    store.check(["k", "zz"])
    store.check([])
    store.wait(["k"])
    fails(DistStoreError, store.wait, ["k", "nope"], SOON)
    store.check(["k"])


@program
def delete_num_keys(relay: Relay) -> None:
    """Keys that are there, are not there any more, and were never there."""
    store = connect(relay)
    store.set("k", "v")
    store.add("n", 1)
    store.num_keys()
    store.delete_key("k")
    store.delete_key("k")
    store.num_keys()


@program
def compare_set(relay: Relay) -> None:
    """Created, refused twice, replaced; and of a missing key, whose answer is what was expected."""
    store = connect(relay)
    store.compare_set("cs", "", "A")
    store.compare_set("cs", "", "B")
    store.compare_set("cs", "X", "C")
    store.compare_set("cs", "A", "BB")
    store.compare_set("miss", "X", "C")
    store.check(["miss"])


@program
def append(relay: Relay) -> None:
    """To nothing, and to something."""
    store = connect(relay)
    store.append("ap", "po")
    store.append("ap", "st")
    store.get("ap")


@program
def multi(relay: Relay) -> None:
    """multi_get waits first; its answer has no count."""
    store = connect(relay)
    store.multi_set(["m1", "m2"], ["x", "yy"])
    store.multi_get(["m2", "m1"])
    store.multi_get([])


@program
def queue(relay: Relay) -> None:
    """A pop waits first, unless it must not block; the length comes before the item."""
    store = connect(relay)
    store.queue_push("q", "one")
    store.queue_push("q", "")
    store.queue_len("q")
    store.queue_pop("q")
    store.queue_pop("q", False)
    fails(QueueEmptyError, store.queue_pop, "q", False)


@program
def list_keys(relay: Relay) -> None:
    """Keys come with their slash; the order means nothing, so it is one only."""
    store = connect(relay)
    store.list_keys()
    store.set("only", "1")
    store.queue_push("q", "x")
    store.list_keys()


@program
def barrier(relay: Relay) -> None:
    """Alone, in vain, and once more: who gave up stays counted."""
    store = connect(relay)
    store.barrier("b1", 1)
    fails(DistStoreError, store.barrier, "b2", 2, SOON)
    store.barrier("b2", 2)
    store.get("b2")


@program
def prefix(relay: Relay) -> None:
    """Prefixes are the client's business."""
    inner = PrefixStore("in", PrefixStore("out", connect(relay)))
    inner.set("k", "v")
    inner.get("k")
    inner.num_keys()
    inner.list_keys()


@program
def wait_released(relay: Relay) -> None:
    """One client waits for what another one sets."""
    first, second = connect(relay), connect(relay)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.get, "x")
        relay.wait_for(lambda messages: any(each.data.startswith(bytes([wire.WAIT])) for each in messages))
        second.set("x", "1")
        waiting.result(60)


@program
def barrier_of_two(relay: Relay) -> None:
    """The last to arrive releases both."""
    first, second = connect(relay), connect(relay)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.barrier, "b", 2)
        relay.wait_for(lambda messages: any(each.data.startswith(bytes([wire.BARRIER])) for each in messages))
        second.barrier("b", 2)
        waiting.result(60)


def record(name: str) -> str:
    """The transcript of a program between torch's client and torch's server."""
    with running("torch") as server:
        relay = Relay(server.port)
        try:
            PROGRAMS[name](relay)
            gc.collect()
        finally:
            messages = relay.close()
    doc = PROGRAMS[name].__doc__
    return f"# {name}: {doc}\n{render(messages)}"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in PROGRAMS:
        (GOLDEN / f"{each}.txt").write_text(record(each))
    print(f"recorded {len(PROGRAMS)} transcripts of torch {torch.__version__}")
