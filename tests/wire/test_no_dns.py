"""The server asks no name server anything; torch's asks about every client, on its only thread.

The name server is this test: it writes down what it is asked and knows nobody.
"""

from __future__ import annotations

import json
import os
import queue
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kits import KITS
from kits.wire.attack_kit import read_line
from kits.wire.wire_client import PATIENCE, WAIT, keyed, validate

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(os.geteuid() != 0, reason="replacing /etc/resolv.conf for one process needs root"),
]

CLIENTS = "127.0.0.9"  # in no hosts file
TORCHS_PATIENCE = 150.0  # to be loaded
QUESTION = b"\x019\x010\x010\x03127\x07in-addr\x04arpa"


class NameServer:
    """Knows no name, and writes down who was looked for."""

    def __init__(self) -> None:
        self.asked: queue.Queue[bytes] = queue.Queue()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:  # nobody else's, and not that of a test before, whose server may still have asked it something
            self._socket.bind((f"127.77.{random.SystemRandom().randint(1, 254)}.53", 53))
        except OSError:
            self._socket.close()
            raise
        self.address = self._socket.getsockname()
        self._thread = threading.Thread(target=self._run, name="name-server")
        self._thread.start()

    def _run(self) -> None:
        while (query := self._socket.recvfrom(512))[0] != b"end":
            question, sender = query
            self.asked.put(question[12:])
            # torch asks no more once a question has remained without an answer
            no_such_name = question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:]
            self._socket.sendto(no_such_name, sender)

    def tell(self, message: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(message, self.address)

    def close(self) -> None:
        self.tell(b"end")
        self._thread.join(PATIENCE)
        self._socket.close()


@pytest.fixture
def name_server() -> Iterator[NameServer]:
    try:
        server = NameServer()
    except OSError as error:
        pytest.skip(f"no name server of our own: {error}")
    yield server
    server.close()


@contextmanager
def serving(kind: str, name_server: NameServer) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process and its port."""
    script = str(KITS / "wire" / "served_with_dns.py")
    with subprocess.Popen(
        [sys.executable, script, kind, name_server.address[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            started = json.loads(read_line(process, TORCHS_PATIENCE))
            if not isinstance(started, int):
                pytest.skip(started)
            yield process, started
        finally:
            process.kill()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(CLIENTS, 0))


def test_our_server_asks_nobody(name_server: NameServer) -> None:
    with serving("ours", name_server) as (process, port):
        clients = [connect(port) for _ in range(50)]
        for client in clients:
            client.sendall(validate() + keyed(WAIT, [b"/never"]) + b"\x0d1234")
            assert client.recv(4) == b"1234"
        clients[0].sendall(b"\xff")  # an offender is named in the log
        assert clients[0].recv(1) == b""
        assert process.stdin
        print("stats", file=process.stdin, flush=True)
        (waited,) = json.loads(read_line(process))["keyspaces"][0]["waited"]
        assert waited["clients"][0]["address"].startswith(CLIENTS + ":")
        for client in clients:
            client.close()
        name_server.tell(b"0123456789abthat was all")
        assert name_server.asked.get(timeout=PATIENCE) == b"that was all"


def test_the_server_of_torch_asks_us(name_server: NameServer) -> None:
    """Shows that the other test would have seen it."""
    with serving("torch", name_server) as (_, port), connect(port) as client:
        client.sendall(validate() + b"\x0d1234")
        while not name_server.asked.get(timeout=PATIENCE).startswith(QUESTION):
            pass  # its own client comes first
