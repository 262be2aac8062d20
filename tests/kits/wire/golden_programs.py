"""Golden transcripts: who sent which bytes while torch's own client was asked to do something, as text.

    # a comment
    C> 01 0200000000000000 2f6b 0100000000000000 76   # client to server, in hex; the spaces mean nothing
    S> 00                                             # server to client
    C2> 07                                            # a second connection

``<pid>`` stands for the four bytes of the client's process id.
"""

from __future__ import annotations

import multiprocessing
import re
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

from torch.distributed import DistStoreError, PrefixStore, QueueEmptyError, TCPStore

from kits import TESTS
from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.store_servers import running
from rdzv_plugins.testing import relay

GOLDEN = TESTS / "wire" / "golden"
SOON = timedelta(milliseconds=50)
LINE = re.compile(r"([CS])(\d*)>\s*([0-9a-f<>pid\s]*)")

# the calls of one client, with the exception first where there has to be one
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "set_get": [
        *(("set", "k", "v"), ("get", "k"), ("set", "", b""), ("get", "")),
        *(("set", "bytes", bytes(range(0, 256, 15))), ("get", "bytes")),
    ],
    "add": [("add", "n", 5), ("add", "n", -7), ("get", "n"), ("add", "zero", 0)],
    "check_wait": [  # a wait that times out is cancelled by the client
        *(("set", "k", "v"), ("check", ["k"]), ("check", ["k", "zz"]), ("check", []), ("wait", ["k"])),
        *((DistStoreError, "wait", ["k", "nope"], SOON), ("check", ["k"])),
    ],
    "delete_num_keys": [
        *(("set", "k", "v"), ("add", "n", 1), ("num_keys",)),
        *(("delete_key", "k"), ("delete_key", "k"), ("num_keys",)),
    ],
    "compare_set": [
        *(("compare_set", "cs", old, new) for old, new in (("", "A"), ("", "B"), ("X", "C"), ("A", "BB"))),
        *(("compare_set", "miss", "X", "C"), ("check", ["miss"])),
    ],
    "append": [("append", "ap", "po"), ("append", "ap", "st"), ("get", "ap")],
    "multi": [("multi_set", ["m1", "m2"], ["x", "yy"]), ("multi_get", ["m2", "m1"]), ("multi_get", [])],
    "queue": [  # a pop waits first, unless it must not block; the length comes before the item
        *(("queue_push", "q", "one"), ("queue_push", "q", ""), ("queue_len", "q")),
        *(("queue_pop", "q"), ("queue_pop", "q", False), (QueueEmptyError, "queue_pop", "q", False)),
    ],
    "list_keys": [("list_keys",), ("set", "only", "1"), ("queue_push", "q", "x"), ("list_keys",)],
    "barrier": [  # alone, in vain, and once more: who gave up stays counted
        *(("barrier", "b1", 1), (DistStoreError, "barrier", "b2", 2, SOON), ("barrier", "b2", 2), ("get", "b2")),
    ],
}
Program = Callable[[int, Event], object]


def connect(port: int, **options: Any) -> TCPStore:
    return TCPStore("127.0.0.1", port, **({"wait_for_workers": False} | options))


def in_turn(store: Any, calls: list[tuple[Any, ...]]) -> None:
    for call in calls:
        error, (name, *arguments) = ((), call) if isinstance(call[0], str) else (call[0], call[1:])
        try:
            getattr(store, name)(*arguments)
        except error:
            continue
        assert not error, call


def handshake(port: int, _: Event) -> None:
    """Connect as one of two workers, and clone: the clone is no further worker."""
    connect(port, world_size=2, wait_for_workers=True).clone()


def prefix(port: int, _: Event) -> None:
    """Prefixes are the client's business."""
    inner = PrefixStore("in", PrefixStore("out", connect(port)))
    in_turn(inner, [("set", "k", "v"), ("get", "k"), ("num_keys",), ("list_keys",)])


def of_two(blocks: tuple[Any, ...], releases: tuple[Any, ...]) -> Program:
    """One client waits, another one releases it."""

    def run(port: int, blocked: Event) -> None:
        first, second = connect(port), connect(port)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(in_turn, first, [blocks])
            assert blocked.wait(60)
            in_turn(second, [releases])
            waiting.result(60)

    return run


PROGRAMS: dict[str, Program] = {
    **{name: lambda port, _, calls=calls: in_turn(connect(port), calls) for name, calls in CALLS.items()},
    "handshake": handshake,
    "prefix": prefix,
    "wait_released": of_two(("get", "x"), ("set", "x", "1")),
    "barrier_of_two": of_two(("barrier", "b", 2), ("barrier", "b", 2)),
}


class Message(NamedTuple):
    to_server: bool
    connection: int  # from 1
    data: bytes


def transcript(name: str, pid: int) -> list[Message]:
    """The messages that are to be, with ``pid`` for ``<pid>``."""
    messages = []
    for line in (GOLDEN / f"{name}.txt").read_text().splitlines():
        if code := line.partition("#")[0].strip():
            match = LINE.fullmatch(code)
            assert match, line
            data = bytes.fromhex(match[3].replace("<pid>", struct.pack("=I", pid).hex()))
            messages.append(Message(match[1] == "C", int(match[2] or 1), data))
    return merged(messages)


def merged(messages: list[Message]) -> list[Message]:
    """Neighbours of one direction and connection as one; replies to several connections by their number."""
    result: list[Message] = []
    for message in messages:
        at = len(result)
        while at and not message.to_server and not result[at - 1].to_server and result[at - 1][1] > message.connection:
            at -= 1
        if at and result[at - 1][:2] == message[:2]:
            result[at - 1] = Message(*message[:2], result[at - 1].data + message.data)
        else:
            result.insert(at, message)
    return result


class Recorder(relay.Relay):
    """Keeps what clients and a server say to each other."""

    def __init__(self, port: int, blocked: Event) -> None:
        self.messages: list[Message] = []
        self._blocked = blocked
        self._numbers: dict[socket.socket, int] = {}
        self._mine = threading.local()
        super().__init__("127.0.0.1", port)

    def _admit(self, caller: socket.socket, called: socket.socket) -> None:
        super()._admit(caller, called)
        self._numbers[caller] = self._numbers[called] = self.connections

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        self._mine.number = self._numbers[source]
        super()._pass_on(source, target, answers)

    def _part(self, data: bytes, answers: bool) -> bytes:
        with self._changed:  # before it is passed on: an answer never stands before its question
            self.messages.append(Message(not answers, self._mine.number, data))
        if not answers and data[0] in (wire.WAIT, wire.BARRIER):
            self._blocked.set()
        return data

    def finished(self) -> bool:
        """All has passed: no connection is left."""
        with self._changed:
            return not self._pairs


def recorded(name: str) -> tuple[int, list[Message]]:
    """What torch's client, in a process of its own as it may hold the GIL, and torch's server say; and its pid."""
    context = multiprocessing.get_context("fork")
    blocked = context.Event()
    with running("torch") as server, Recorder(server.port, blocked) as between:
        client = context.Process(target=PROGRAMS[name], args=(between.port, blocked))
        client.start()
        client.join(60)
        assert client.exitcode == 0, f"{name}: {client.exitcode}"
        assert client.pid is not None
        eventually(between.finished)
        return client.pid, merged(between.messages)
