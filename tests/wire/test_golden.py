"""Golden transcripts of torch's own client: we answer the same bytes, however the client's were cut into packets."""

from __future__ import annotations

import pytest
from kits.wire import golden_programs as golden
from kits.wire import wire_client as wire
from kits.wire.store_servers import KINDS, Server, running

PID = 0x44332211


def replay(server: Server, transcript: list[golden.Message], size: int) -> None:
    """Say the client's lines, in packets of that size, and expect the server's."""
    connections: dict[int, wire.Raw] = {}
    bystander = server.connect(0)
    for message in transcript:
        if message.connection not in connections:
            connections[message.connection] = server.connect(0, validated=False)
        connection = connections[message.connection]
        if message.to_server:
            for at in range(0, len(message.data), size):
                connection.send(message.data[at : at + size])
                bystander.fence()  # on the same loop: it has looked at this packet before the next one comes
        else:
            assert connection.receive(len(message.data)) == message.data
    for connection in connections.values():
        assert connection.fence() == b"", "it says no more than that"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "torch"])
def test_whole(kind: str) -> None:
    for name in golden.PROGRAMS:
        with running(kind) as server:
            replay(server, golden.transcript(name, PID), 2**20)


@pytest.mark.parametrize("kind", ["threads=1", "proxy"])
def test_byte_by_byte(kind: str) -> None:
    for name in golden.PROGRAMS:
        with running(kind) as server:
            replay(server, golden.transcript(name, PID), 1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", golden.PROGRAMS)
def test_torchs_client_and_server_still_speak_like_that(name: str) -> None:
    """If not: write down what they say now, and see whether our server needs a change."""
    pid, said = golden.recorded(name)
    assert said == golden.transcript(name, pid)
