"""Sessions with a coordination service: in this process, and as one that can be killed. Servers that answer a
session what a test wants."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from kits.wire.processes import SCRIPTS, read_line, spawned
from kits.wire.wire_client import PATIENCE
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination, NativeSession
from rdzv_plugins.testing.parts import LONG, Losses, Recorder, keys_of, opened, stop

__all__ = ["LONG", "Losses", "Recorder", "client_of", "keys_of", "leave", "opened", "stop"]


@contextmanager
def client_of(
    endpoints: Sequence[Endpoint], key: str, ttl: float, *, kind: str = "native"
) -> Iterator[subprocess.Popen[str]]:
    """A process with a session of run ``run`` that has written ``key`` as ephemeral."""
    options = {"kind": kind, "endpoints": [(each.host, each.port) for each in endpoints]}
    options |= {"key": key, "ttl": ttl}
    with spawned([[sys.executable, SCRIPTS / "session_client.py", json.dumps(options)]]) as (process,):
        line = read_line(process)
        assert line == "ready\n", line + (process.communicate(timeout=PATIENCE)[0] if process.stdout else "")
        yield process


def leave(process: subprocess.Popen[str]) -> None:
    """Let a client close its session and end."""
    assert process.stdin
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


HELLO = b"RDZV" + struct.pack("<I", 1)
OPENED = struct.pack("<QQI", 1, 0, 9) + b"127.0.0.1\1"


def at(port: int, run: str = "run", host: str = "127.0.0.1") -> NativeCoordination:
    return NativeCoordination(Endpoint(host, port), run, name="parallel", who="the store")


def session_at(port: int, ttl: float = LONG, losses: Losses | None = None) -> NativeSession:
    session = opened(at(port), ttl, losses)
    assert isinstance(session, NativeSession)
    return session


@contextmanager
def answering(*scripts: Callable[[socket.socket], object], port: int = 0) -> Iterator[int]:
    """The port of a server that does with its first connections what the scripts say, and keeps them open."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        kept = []

        def serve() -> None:
            for script in scripts:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test has ended
                    return
                kept.append(connection)
                with suppress(OSError):
                    script(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in kept:
                with suppress(OSError):  # it has ended, or was closed
                    connection.shutdown(socket.SHUT_RDWR)  # the script may still read from it
            thread.join(PATIENCE)
            for connection in kept:
                connection.close()


def says(*words: bytes) -> Callable[[socket.socket], object]:
    """Each after something was heard."""
    return lambda connection: [(connection.recv(1000), connection.sendall(each)) for each in words]


def opens(*words: bytes) -> Callable[[socket.socket], object]:
    """A session, and then says these."""
    return says(HELLO + reply(0, OPENED), *words)


def reply(status: int, payload: bytes, number: int = 1) -> bytes:
    return struct.pack("<IIB", 5 + len(payload), number, status) + payload
