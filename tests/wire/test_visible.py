"""A worker that was told of another one's write by other means asks for it, and finds it.

A ``set`` has no answer: it may still lie in a socket of the store when others hear of it, and theirs may be read first.
How often that happens beside torch's own server is what ``visibility.py`` measures; here it happens always.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from kits.wire import visibility
from kits.wire import wire_client as wire
from kits.wire.processes import started
from kits.wire.standstill import stopped
from kits.wire.unix_kit import moved, reached
from torch.distributed import PrefixStore, Store, TCPStore

from rdzv_plugins.torch_bridge import answered_writes
from rdzv_plugins.torch_bridge.answered_writes import answer_writes

pytestmark = pytest.mark.thorough

CLIENTS = 9
PATIENCE_S = 120
KEYS = [b"/key %d" % number for number in range(CLIENTS)]


@pytest.fixture(params=["one loop", "four loops", "proxy"], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Port and process of what clients connect to: a store, or a proxy that all of them share."""
    threads = 4 if request.param == "four loops" else 1
    with started("visible_server.py", [("parallel", threads)]) as (root,):
        port = int(root.stdout.readline())
        if request.param != "proxy":
            yield port, root.pid
            return
        with started("visible_server.py", [("proxy", port, "@visible")]) as (proxy,):
            yield int(proxy.stdout.readline()), proxy.pid


def told(client: wire.Raw, request: bytes, size: int) -> Callable[[], bytes]:
    client.send(request)
    return lambda: client.receive(size)


# what is asked when all have written: the request, and how its answer begins if it was too early
QUESTIONS: dict[str, Callable[[wire.Raw, int], tuple[Callable[[], object], object]]] = {
    "check": lambda client, _: (told(client, wire.keyed(wire.CHECK, KEYS), 1), b"\0"),
    "get": lambda client, number: (told(client, wire.get(KEYS[number - 1]), 11), wire.text(b"new")),
    "multi_get": lambda client, _: (
        told(client, wire.keyed(wire.MULTI_GET, KEYS), 11 * CLIENTS),
        wire.text(b"new") * CLIENTS,
    ),
    "num_keys": lambda client, _: (told(client, wire.op(wire.NUM_KEYS), 8), wire.i64(CLIENTS)),
    "delete": lambda client, number: (told(client, wire.delete(KEYS[number - 1]), 8), wire.i64(1)),
    "compare_set": lambda client, number: (
        told(client, wire.compare_set(KEYS[number - 1], b"new", b"newer"), 13),
        wire.text(b"newer"),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_who_asks_after_all_have_written_finds_it(server: tuple[int, int], question: str) -> None:
    """All have sent their writes before the first one asks, and the store reads it all later, in any order."""
    port, pid = server
    clients = [wire.Raw(port) for _ in KEYS]
    for _ in range(5):
        for client, key in zip(clients, KEYS, strict=True):
            if question not in ("check", "num_keys"):
                client.send(wire.set_(key, b"old"))
                assert client.fence() == b""
        if question == "get":
            for client in clients:  # a proxy holds them
                assert client.ask(wire.get(KEYS[0]), 11) == wire.text(b"old")
        with stopped([pid]):
            for client, key in zip(clients, KEYS, strict=True):
                client.send(wire.set_(key, b"new"))
            asked = [QUESTIONS[question](client, number) for number, client in enumerate(clients)]
        for answer, expected in asked:
            assert answer() == expected
        for key in KEYS:
            clients[0].ask(wire.delete(key), 8)
    for client in clients:
        client.close()


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's class is as it was afterwards."""
    for name in answered_writes._WRITES:
        monkeypatch.setattr(Store, name, getattr(Store, name))
    monkeypatch.setattr(answered_writes, "_ports", set())


def test_writes_that_wait_are_at_the_root_when_they_return(unpatched: None) -> None:
    with reached() as server:
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
        assert server.proxies[0].stats()["requests"]["check"] == 5 * 50  # one for each write


@pytest.mark.parametrize("store", ["tiered", "tiered, unix"])
def test_a_worker_behind_a_proxy_sees_what_another_has_set(store: str) -> None:
    """On two nodes, with a collective of gloo in between."""
    assert visibility.measure(store, 10) == dict.fromkeys(visibility.KINDS, 0)


def test_who_only_writes_does_not_keep_others_from_their_answers(server: tuple[int, int]) -> None:
    """However much there is to be read of them: a question waits for what was sent before it, and not for all."""
    port, _ = server
    stop = threading.Event()

    def write() -> None:
        with wire.Raw(port) as writer:
            while not stop.is_set():
                writer.send(wire.set_(b"/written", b"v" * 1024) * 64)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    try:
        with wire.Raw(port) as client:
            for _ in range(100):
                client.send(wire.set_(b"/mine", b"v"))
                assert client.ask(wire.keyed(wire.CHECK, [b"/mine"]), 1) == b"\0"
                assert client.ask(wire.delete(b"/mine"), 8) == wire.i64(1)
    finally:
        stop.set()
        for writer in writers:
            writer.join(PATIENCE_S)
    with wire.Raw(port) as client:
        client.ask(wire.delete(b"/written"), 8)
