"""Golden transcripts of torch's own client: we answer the same bytes, however the client's were cut into packets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits.wire import golden_programs
from kits.wire import wire_client as wire
from kits.wire.store_servers import Server, running
from kits.wire.transcripts import Message, parse

FILES = sorted(golden_programs.GOLDEN.glob("*.txt"))
PID = b"\x11\x22\x33\x44"
Packets = Callable[[bytes], list[bytes]]


@pytest.fixture(scope="module")
def one_loop() -> Iterator[Server]:
    with running("threads=1") as server:
        yield server


@pytest.fixture(scope="module")
def one_proxy() -> Iterator[Server]:
    with running("proxy") as server:
        yield server


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def transcript(request: pytest.FixtureRequest) -> list[Message]:
    path: Path = request.param
    return parse(path.read_text(), PID)


def replay(server: Server, transcript: list[Message], cut: Callable[[int, bytes], list[bytes]]) -> None:
    """Say the client's lines and expect the server's. ``cut(offset, bytes)``: the packets, of what starts at ``offset``
    of all that is sent."""
    connections: dict[int, wire.Raw] = {}
    bystander = server.connect()
    offset = 0
    try:
        for message in transcript:
            if message.connection not in connections:
                connections[message.connection] = server.connect(validated=False)
            connection = connections[message.connection]
            if message.to_server:
                packets = cut(offset, message.data)
                for packet in packets[:-1]:
                    connection.send(packet)
                    bystander.fence()  # on the same loop: it has looked at this packet before the next one comes
                connection.send(packets[-1])
                offset += len(message.data)
            else:
                assert connection.receive(len(message.data)) == message.data
        for connection in connections.values():
            assert connection.fence() == b"", "it says no more than that"
    finally:
        bystander.close()
        for connection in connections.values():
            connection.close()


def test_every_program_has_its_transcript():
    assert {path.stem for path in FILES} == set(golden_programs.PROGRAMS)


def test_every_request_is_in_a_transcript():
    lines = [line for path in FILES for line in path.read_text().splitlines()]
    assert {line.split()[1] for line in lines if line.startswith("C")} == {f"{code:02x}" for code in range(19)}


def test_whole(server, transcript):
    replay(server, transcript, lambda _, data: [data])


def test_byte_by_byte(one_loop, transcript):
    one_loop.ours.first.wipe()
    replay(one_loop, transcript, lambda _, data: [data[at : at + 1] for at in range(len(data))])


def test_byte_by_byte_to_a_proxy(one_proxy, transcript):
    one_proxy.ours.first.wipe()
    replay(one_proxy, transcript, lambda _, data: [data[at : at + 1] for at in range(len(data))])


def test_every_split_into_two_packets(one_loop, transcript):
    size = sum(len(message.data) for message in transcript if message.to_server)
    for at in range(1, size):

        def cut(offset: int, data: bytes, at: int = at) -> list[bytes]:
            return [data[: at - offset], data[at - offset :]] if offset < at < offset + len(data) else [data]

        one_loop.ours.first.wipe()
        replay(one_loop, transcript, cut)


@pytest.mark.parametrize("name", golden_programs.PROGRAMS)
def test_torchs_client_and_server_still_speak_like_that(name):
    """If not: record anew with golden_programs.py, and see whether our server needs a change."""
    path = golden_programs.GOLDEN / f"{name}.txt"
    assert golden_programs.record(name) == path.read_text()
