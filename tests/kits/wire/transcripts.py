"""Golden transcripts: who sent which bytes, as text; and the relay that records them between a client and a server.

    # a comment
    C> 01 0200000000000000 2f6b 0100000000000000 76   # client to server, in hex; the spaces mean nothing
    S> 00                                             # server to client
    C2> 07                                            # a second connection

``<pid>`` stands for the four bytes of the client's process id.
"""

from __future__ import annotations

import os
import re
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kits.wire import processes
from kits.wire import wire_client as wire

LINE = re.compile(r"([CS])(\d*)>\s*([0-9a-f<>pid\s]*)")
# The fields of each request: s a string, 4 and 8 that many bytes, n a count of what follows.
FIELDS = {
    "VALIDATE": "4",
    "SET": "ss",
    "COMPARE_SET": "sss",
    "GET": "s",
    "ADD": "s8",
    "CHECK": "ns",
    "WAIT": "ns",
    "NUM_KEYS": "",
    "DELETE_KEY": "s",
    "APPEND": "ss",
    "MULTI_GET": "ns",
    "MULTI_SET": "nss",
    "CANCEL_WAIT": "",
    "PING": "4",
    "QUEUE_PUSH": "ss",
    "QUEUE_POP": "s",
    "QUEUE_LEN": "s",
    "LIST_KEYS": "",
    "BARRIER": "s8",
}
NAMES = {getattr(wire, name): name for name in FIELDS}
PID = struct.pack("=I", os.getpid())


@dataclass(frozen=True)
class Message:
    to_server: bool
    connection: int  # from 1
    data: bytes


def parse(text: str, pid: bytes) -> list[Message]:
    """The messages of a transcript, with ``pid`` for ``<pid>``."""
    messages = []
    for line in text.splitlines():
        code = line.partition("#")[0].strip()
        if code:
            match = LINE.fullmatch(code)
            assert match, line
            data = bytes.fromhex(match[3].replace("<pid>", pid.hex()))
            messages.append(Message(match[1] == "C", int(match[2] or 1), data))
    return messages


def render(messages: list[Message]) -> str:
    """One line for each request, and one for what came back before the next."""
    lines = []
    greeted = set()
    for message in messages:
        number = "" if message.connection == 1 else message.connection
        if message.to_server:
            for fields, comment in _requests(message.data):
                lines.append(f"C{number}> {' '.join(fields)}   # {comment}")
        else:
            data = message.data.hex()
            if message.connection not in greeted and message.data.startswith(PID):
                data = f"<pid> {data[8:]}".rstrip()
            greeted.add(message.connection)
            lines.append(f"S{number}> {data}")
    return "\n".join(lines) + "\n"


def _requests(data: bytes) -> list[tuple[list[str], str]]:
    """Each request's fields in hex, and what it says."""
    requests = []
    while data:
        code, data = data[0], data[1:]
        name = NAMES[code]
        layout = FIELDS[name]
        fields, said = [f"{code:02x}"], [name]

        def take(size: int, name: str = name, fields: list[str] = fields) -> bytes:
            nonlocal data
            part, data = data[:size], data[size:]
            assert len(part) == size, "a request that is cut off"
            fields.append("<pid>" if name == "PING" and part == PID else part.hex())
            return part

        if layout.startswith("n"):
            (count,) = struct.unpack("=Q", take(8))
            said.append(str(count))
            layout = layout[1:] * count
        for field in layout:
            if field == "s":
                (size,) = struct.unpack("=Q", take(8))
                said.append(ascii(take(size))[1:] if size else "''")
            else:
                part = take(int(field))
                said.append(str(struct.unpack("=q", part)[0]) if field == "8" else "")
        requests.append(([field for field in fields if field], " ".join(said).rstrip()))
    return requests


class Relay:
    """Between clients and a server, in a process of its own; keeps what they say to each other."""

    def __init__(self, server_port: int) -> None:
        self._held = processes.started("relay.py", [(server_port,)])
        (self._process,) = self._held.__enter__()
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            who, number, data = line.split()
            with self._changed:
                self._messages.append(Message(who == "C", int(number), bytes.fromhex(data)))
                self._changed.notify_all()

    def wait_for(self, seen: Callable[[list[Message]], bool]) -> None:
        """Until the messages so far are as ``seen`` wants them."""
        with self._changed:
            assert self._changed.wait_for(lambda: seen(self._messages), 60), render(merged(self._messages))

    def close(self) -> list[Message]:
        """All messages, in an order that does not depend on how they were cut into packets. The clients are gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(60)
        self._held.__exit__(None, None, None)
        return merged(self._messages)


def merged(messages: list[Message]) -> list[Message]:
    """Neighbours of one direction and connection as one; replies to several connections by their number."""
    result: list[Message] = []
    for message in messages:
        at = len(result)
        if not message.to_server:
            while at > 0 and not result[at - 1].to_server and result[at - 1].connection > message.connection:
                at -= 1
        before = result[at - 1] if at > 0 else None
        if before and (before.to_server, before.connection) == (message.to_server, message.connection):
            result[at - 1] = Message(message.to_server, message.connection, before.data + message.data)
        else:
            result.insert(at, message)
    return result
