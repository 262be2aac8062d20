"""What several clients see of several keys has one order, that of each client kept: of one server, and of several
proxies. A push wakes one of those who wait, wherever they are.

Requests are pipelined: a SET has no answer, so torch's client asks for the next thing before the SET has been done. Who
was told of another one's write by other means may ask for it before that is read: it is found all the same."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
from kits.eventually import eventually
from kits.relay import Relay
from kits.wire import wire_client as wire
from kits.wire.attack_kit import ServerProcess, standing, stopped
from kits.wire.proxy_kit import Node, crowd, expect_requests
from kits.wire.store_servers import Server, running
from kits.wire.unix_kit import Reached, moved, reached
from torch.distributed import PrefixStore, TCPStore

from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.torchrun.worker_transport import answer_writes

X, Y = b"/x", b"/y"
ROUNDS = 300
READS = 6  # of one value, so that most are answered by a proxy


@pytest.fixture(params=["proxies", "tiers"])
def proxied(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(request.param) as server:
        yield server


def anywhere(server: Server, number: int) -> wire.Raw:
    """A client of one proxy after the other, every third of the root itself."""
    assert server.ours is not None
    if number % 3 == 2:
        return wire.Raw(server.ours.port)
    return server.connect(number)


def values(client: wire.Raw, count: int) -> list[int]:
    return [int(client.receive_text() or b"0") for _ in range(count)]


@pytest.mark.parametrize("others", [(0, 1), (0, 2)], ids=["proxies", "proxy and root"])
def test_who_writes_and_then_reads_sees_the_other_write_or_is_seen(proxied, others):
    """Each sets its own key and then reads the other's: never do both read what was there before."""
    one, other = (anywhere(proxied, each) for each in others)
    turns = range(1, ROUNDS + 1)
    one.send(b"".join(wire.set_(X, b"%d" % turn) + wire.get(Y) * READS for turn in turns))
    other.send(b"".join(wire.set_(Y, b"%d" % turn) + wire.get(X) * READS for turn in turns))
    ys, xs = values(one, ROUNDS * READS), values(other, ROUNDS * READS)
    assert (ys, xs) == (sorted(ys), sorted(xs))
    # One's SET x=turn is before its read of y. If that read is before the other's SET y=later, so is SET x=turn.
    for turn in turns:
        later = ys[turn * READS - 1] + 1
        if later <= ROUNDS:
            assert xs[(later - 1) * READS] >= turn, (turn, later)
    one.close()
    other.close()


def test_two_readers_agree_on_the_order_of_two_writes(proxied):
    """Reads of independent writes: if one has seen x and not yet y, the other cannot have seen y and not x."""
    writers = [anywhere(proxied, each) for each in (0, 2)]
    readers = [anywhere(proxied, each) for each in (1, 3)]
    for key, writer in zip((X, Y), writers, strict=True):
        writer.send(b"".join(wire.set_(key, b"%d" % turn) + wire.get(b"/other") for turn in range(1, ROUNDS + 1)))
    readers[0].send((wire.get(X) + wire.get(Y)) * ROUNDS * READS)
    readers[1].send((wire.get(Y) + wire.get(X)) * ROUNDS * READS)
    one, other = (values(reader, 2 * ROUNDS * READS) for reader in readers)
    xy = list(zip(one[::2], one[1::2], strict=True))  # x, then y
    yx = list(zip(other[::2], other[1::2], strict=True))
    # Who read x=a and then y=b < c says that x=a was there before y=c: who has read y=c, then reads x >= a.
    for a, b in set(xy):
        for c, d in set(yx):
            assert not (c > b and d < a), (a, b, c, d)
    for client in writers + readers:
        client.close()


def test_what_is_wiped_is_gone_everywhere(proxied):
    assert proxied.ours is not None
    readers = [proxied.connect(each) for each in range(2)]
    for turn in range(20):
        readers[0].do(wire.set_(X, b"%d" % turn))
        for reader in readers * 3:
            assert reader.get(X) == b"%d" % turn
        proxied.ours.first.wipe()
        for reader in readers:
            eventually(lambda reader=reader: reader.get(X) == b"")  # a moment later
            assert reader.ask(wire.keyed(wire.CHECK, [X]), 1) == b"\1"


QUEUE = b"/queue"
WAIT = wire.keyed(wire.WAIT, [QUEUE])


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_wake_that_comes_too_late_for_one_is_for_another(root: StoreServer, how: str) -> None:
    """It is under way to a proxy whose only waiter gives up meanwhile: somebody else's proxy gets it."""
    with (
        Relay(root.port) as relay,
        Node(relay.port) as far,
        Node(root.port) as near,
        crowd(far.port, 1) as (first,),
        wire.Raw(near.port, through=True) as second,
        wire.Raw(root.port) as other,
    ):
        first.send(WAIT + wire.queue_len(wire.NO_QUEUE))
        assert first.receive(8) == wire.i64(0)
        second.do(WAIT)
        relay.stall()
        other.do(wire.queue_push(QUEUE, b"0"))
        if how == "cancel":
            first.send(wire.op(wire.CANCEL_WAIT))
            expect_requests(far, "cancel_wait", 1)
            relay.mend()
            answer = first.fence()
            if answer == wire.STOP_WAITING + wire.WAIT_CANCELED:
                return  # it was told before, and the item is its own
            assert answer == wire.WAIT_CANCELED
        else:
            first.close()
            eventually(lambda: far.proxy.stats()["connections"]["open"] == 0, far.proxy.stats)
            relay.mend()
        assert second.receive(1) == wire.STOP_WAITING
        assert second.ask(wire.queue_pop(QUEUE), 17) == wire.i64(1) + wire.text(b"0")


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
