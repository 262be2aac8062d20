"""What several clients of several proxies see of several keys has one order, that of each client kept.

Requests are pipelined: a SET has no answer, so torch's client asks for the next thing before the SET has been done.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.store_servers import Server, running

X, Y = b"/x", b"/y"
ROUNDS = 300
READS = 6  # of one value, so that most are answered by a proxy


@pytest.fixture(params=[pytest.param("proxy", marks=pytest.mark.thorough), "proxies", "tiers"])
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
