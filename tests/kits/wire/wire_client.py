"""Raw requests of torch's TCPStore wire format, and a socket that speaks them; no torch in between.

Nothing of it is taken from the product, on purpose: it is the oracle, and must not repeat the product's mistakes.
Every read has a limit: a server that stays silent fails the test instead of hanging it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE_KEY, APPEND = range(10)
MULTI_GET, MULTI_SET, CANCEL_WAIT, PING, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, LIST_KEYS, BARRIER = range(10, 19)
MAGIC = 0x3C85F7CE
PATIENCE = 60.0  # seconds; nothing that is expected takes that long, on a busy machine either
STOP_WAITING, WAIT_CANCELED = b"\0", b"\1"
NO_QUEUE = b"nobody pushes here"


def u64(number: int) -> bytes:
    return struct.pack("=Q", number)


def i64(number: int) -> bytes:
    return struct.pack("=q", number)


def text(data: bytes) -> bytes:
    return u64(len(data)) + data


def op(code: int, *parts: bytes) -> bytes:
    return bytes([code]) + b"".join(parts)


def validate(magic: int = MAGIC) -> bytes:
    return op(VALIDATE, struct.pack("=I", magic))


def ping(nonce: int) -> bytes:
    return op(PING, pong(nonce))


def pong(nonce: int) -> bytes:
    return struct.pack("=I", nonce)


def set_(key: bytes, value: bytes) -> bytes:
    return op(SET, text(key), text(value))


def append(key: bytes, value: bytes) -> bytes:
    return op(APPEND, text(key), text(value))


def compare_set(key: bytes, expected: bytes, desired: bytes) -> bytes:
    return op(COMPARE_SET, text(key), text(expected), text(desired))


def get(key: bytes) -> bytes:
    return op(GET, text(key))


def add(key: bytes, delta: int) -> bytes:
    return op(ADD, text(key), i64(delta))


def delete(key: bytes) -> bytes:
    return op(DELETE_KEY, text(key))


def keyed(code: int, keys: Iterable[bytes]) -> bytes:
    """CHECK, WAIT or MULTI_GET."""
    names = [text(key) for key in keys]
    return op(code, u64(len(names)), *names)


def multi_set(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    items = [text(key) + text(value) for key, value in pairs]
    return op(MULTI_SET, u64(len(items)), *items)


def queue_push(key: bytes, value: bytes) -> bytes:
    return op(QUEUE_PUSH, text(key), text(value))


def queue_pop(key: bytes) -> bytes:
    return op(QUEUE_POP, text(key))


def queue_len(key: bytes) -> bytes:
    return op(QUEUE_LEN, text(key))


def barrier(key: bytes, world_size: int) -> bytes:
    return op(BARRIER, text(key), i64(world_size))


class Closed(Exception):
    """The server hung up; ``args[0]`` is what it had sent before."""


class Raw:
    """One connection. ``validated=False`` sends nothing at first.

    With ``through``, a fence asks for something that no proxy can answer by itself.
    """

    def __init__(self, port: int, *, validated: bool = True, through: bool = False) -> None:
        self._through = through
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._nonce = 0
        self._buffer = bytearray()
        if validated:
            self.send(validate())
            try:
                assert self.fence() == b""
            except BaseException:
                self.close()
                raise

    def send(self, data: bytes) -> None:
        """The server may have hung up already: reading tells."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive(self, size: int) -> bytes:
        """Exactly ``size`` bytes; raises ``Closed``."""
        while len(self._buffer) < size:
            self._more()
        return self._take(size)

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _more(self) -> None:
        try:
            part = self.socket.recv(1 << 20)
        except ConnectionResetError:
            part = b""
        if not part:
            raise Closed(self._take(len(self._buffer)))
        self._buffer += part

    def receive_text(self) -> bytes:
        return self.receive(struct.unpack("=Q", self.receive(8))[0])

    def receive_i64(self) -> int:
        return int(struct.unpack("=q", self.receive(8))[0])

    def ask(self, request: bytes, size: int) -> bytes:
        self.send(request)
        return self.receive(size)

    def do(self, request: bytes) -> None:
        """What has no answer, or none yet; returns when the server has dealt with it."""
        self.send(request)
        assert self.fence() == b""

    def get(self, key: bytes) -> bytes:
        self.send(get(key))
        return self.receive_text()

    def until_close(self) -> bytes:
        """All that comes until the server hangs up; fails with ``TimeoutError`` if it does not."""
        try:
            while True:
                self._more()
        except Closed as closed:
            return bytes(closed.args[0])

    def fence(self) -> bytes:
        """What the server had sent before it answered a PING. Raises ``Closed``.

        The nonce begins with two bytes that nothing else here contains.
        """
        self._nonce += 1
        answer = b"\xfb\xfa" + struct.pack(">H", self._nonce % 0x10000)
        question = op(PING, answer)
        if self._through:
            answer = i64(0) + answer
            question = queue_len(NO_QUEUE) + question
        self.send(question)
        start = 0
        while (end := self._buffer.find(answer, start)) < 0:
            start = max(0, len(self._buffer) - len(answer) + 1)
            self._more()
        data = self._take(end)
        self._take(len(answer))
        return data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
