"""A worker that was told of another one's write by other means asks for it, and finds it.

A ``set`` has no answer: it may still lie in a socket of the store when others hear of it, and theirs may be read first.
Here that happens always.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
from kits.wire import wire_client as wire
from kits.wire.attack_kit import ServerProcess, standing, stopped
from kits.wire.unix_kit import Reached, moved, reached
from torch.distributed import PrefixStore, TCPStore

from rdzv_plugins.torch_bridge.worker_transport import answer_writes

CLIENTS = 9
KEYS = [b"/key %d" % number for number in range(CLIENTS)]


@pytest.fixture
def server(threads: int) -> Iterator[ServerProcess]:
    with ServerProcess(threads=threads) as server:
        yield server


def question(name: str, number: int) -> tuple[bytes, bytes]:
    """What that client asks when all have written, and the answer; another client wrote the key."""
    key, value = KEYS[number - 1], wire.text(b"new")
    return {
        "check": (wire.keyed(wire.CHECK, KEYS), b"\0"),
        "get": (wire.get(key), value),
        "multi_get": (wire.keyed(wire.MULTI_GET, KEYS), value * CLIENTS),
        "num_keys": (wire.op(wire.NUM_KEYS), wire.i64(CLIENTS)),
        "delete": (wire.delete(key), wire.i64(1)),
        "compare_set": (wire.compare_set(key, b"new", b"newer"), wire.text(b"newer")),
    }[name]


def test_who_asks_after_all_have_written_finds_it(server: ServerProcess) -> None:
    """All have sent their writes before the first one asks, and the store reads it all later, in any order."""
    with standing(server.port, b"", count=CLIENTS) as clients:
        for name in ("check", "get", "multi_get", "num_keys", "delete", "compare_set"):
            if name not in ("check", "num_keys"):
                clients[0].do(wire.multi_set((key, b"old") for key in KEYS))
            if name == "get":
                for client in clients:  # a proxy holds them
                    assert client.ask(wire.get(KEYS[0]), 11) == wire.text(b"old")
            asked = [question(name, number) for number in range(CLIENTS)]
            with stopped(server.pid):
                for client, key in zip(clients, KEYS, strict=True):
                    client.send(wire.set_(key, b"new"))
                for client, (request, _) in zip(clients, asked, strict=True):
                    client.send(request)
            for client, (_, answer) in zip(clients, asked, strict=True):
                assert client.receive(len(answer)) == answer, name
            for key in KEYS:
                clients[0].ask(wire.delete(key), 8)


def write_and_look(server: Reached) -> None:
    assert server.ours is not None
    store = moved(server)
    by_others = TCPStore("127.0.0.1", server.ours.port, wait_for_workers=False)
    answer_writes(store.port)
    answer_writes(store.port)  # of another process group: nothing is done twice
    named = PrefixStore("outer", PrefixStore("inner", store))
    for turn in range(50):
        store.set(f"set/{turn}", "")
        assert by_others.check([f"set/{turn}"])
        named.set(f"set/{turn}", "")
        assert by_others.check([f"inner/outer/set/{turn}"])
        store.multi_set([f"many/{turn}"], [""])
        assert by_others.check([f"many/{turn}"])
        store.append("text", ".")
        assert len(by_others.get("text")) == turn + 1
        store.queue_push("queue", "")
        assert by_others.queue_len("queue") == turn + 1
    by_others.set("theirs", "is none of ours")


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_writes_that_wait_are_at_the_root_when_they_return() -> None:
    """In a process of its own: torch's class is another one afterwards."""
    with reached() as server:
        worker = multiprocessing.get_context("fork").Process(target=write_and_look, args=(server,))
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
        assert server.proxies[0].stats()["requests"]["check"] == 5 * 50  # one for each write
