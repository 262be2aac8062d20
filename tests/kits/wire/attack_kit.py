"""A server to attack, bystanders who must not notice, and attackers that do not stop by themselves."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kits.eventually import eventually
from kits.wire import wire_client as wire
from kits.wire.wire_client import PATIENCE, Closed, Raw
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.testing.parts import stop

MIB = 2**20
PROXY = 0
"""Of threads: the server that is attacked is a proxy."""

Files = frozenset[tuple[str, str]]


def open_files() -> Files:
    """What this process has open: the number of each descriptor, and what it leads to.

    To be compared by name: what earlier tests have left may be closed at any time, which changes how many there are.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except OSError:  # closed meanwhile, as that of this listing
            pass
    return frozenset(found)


def expect_no_more_files(before: Files) -> None:
    """All that was opened since is closed, or will be: the threads of a server's log end a moment after it."""
    gc.collect()
    eventually(lambda: not open_files() - before, lambda: sorted(open_files() - before))


class ServerProcess:
    """``served.py``, ended with the ``with`` block whatever happens.

    A proxy's root is a server of this process, or at the port ``root``; ``proxy`` are further arguments of the proxy.
    Times after which somebody is given up (of ``limits``, and the grace of a proxy) are longer than any test lasts,
    unless it asks for others.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        root: int | None = None,
        proxy: dict[str, Any] | None = None,
        pause: float = 0,
        **limits: float,
    ) -> None:
        self.root = StoreServer("127.0.0.1", threads=1) if threads == PROXY and root is None else None
        options = {
            "root": self.root.port if self.root is not None else root,
            "proxy": {"grace": 2 * PATIENCE} | (proxy or {}),
            "threads": threads,
            "pause": pause,
            "limits": {"handshake_seconds": 600.0, "stall_seconds": 600.0} | limits,
        }
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the server
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "served.py"), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.pid = self._process.pid
        self._killed = False
        try:
            self.port = int(self.ask("port"))
        except BaseException:
            self.__exit__()
            raise
        self._before = self._memory()

    def ask(self, command: str) -> Any:
        """What it answers to one of its commands."""
        assert self._process.stdin
        assert self._process.stdout
        print(command, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the server ended with {self._process.wait(PATIENCE)}:\n{self.log()}"
        return json.loads(line)

    def stats(self) -> dict[str, Any]:
        statistics: dict[str, Any] = self.ask("stats")
        return statistics

    def log(self) -> str:
        """What its logger has printed."""
        return os.pread(self._log.fileno(), 16 * MIB, 0).decode()

    def refused(self, reason: str) -> int:
        """How many clients were closed for that so far."""
        return int(self.stats()["refused"].get(reason, 0))

    def _memory(self) -> int:
        return int(Path(f"/proc/{self.pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024

    def growth(self) -> int:
        """Resident bytes more than when it was empty."""
        return self._memory() - self._before

    def kill(self) -> None:
        """As a power failure would."""
        self._process.kill()
        self._process.wait()
        self._killed = True

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=PATIENCE)  # it ends with its input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        if self.root is not None:
            self.root.close()
        log, code = self.log(), self._process.returncode
        self._log.close()
        assert code == 0 or self._killed, f"the server ended with {code}:\n{log}"


class Workers:
    """Clients that do in a thread, round after round, all that changes something, each with keys of its own.

    Every answer is checked: nothing may be lost, done twice or out of order.
    """

    def __init__(self, port: int, clients: int = 3, name: bytes = b"") -> None:
        self.clients = [Raw(port) for _ in range(clients)]
        self.rounds = 0
        """How often every client has been answered."""
        self._name = name or uuid.uuid4().hex.encode()
        self._changed = threading.Condition()
        self._stopping = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        error = None
        while not (error or self._stopping):
            try:
                self._round()
            except (Closed, OSError, AssertionError) as caught:
                error = caught
            with self._changed:
                self._error = error
                self.rounds += not error
                self._changed.notify_all()

    def advance(self, rounds: int) -> None:
        """Returns when every client has been answered ``rounds`` times more."""
        with self._changed:
            goal = self.rounds + rounds
            self._changed.wait_for(lambda: self.rounds >= goal or self._error, PATIENCE)
            assert self._error is None, f"a bystander was disturbed: {self._error!r}"
            assert self.rounds >= goal, f"bystanders got no further than {self.rounds} of {goal}"

    def expect_closed(self) -> None:
        """They are all cut off, and have seen nothing wrong before."""
        with self._changed:
            self._changed.wait_for(lambda: self._error, PATIENCE)
        assert isinstance(self._error, Closed), self._error
        self._ended = True
        for client in self.clients:
            client.until_close()

    def __enter__(self) -> Workers:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping = True
        self._thread.join(PATIENCE)
        for client in self.clients:
            client.close()
        if kind is None and not self._ended:
            assert self._error is None, f"a bystander was disturbed: {self._error!r}"

    def _round(self) -> None:
        for number, client in enumerate(self.clients):
            client.send(self._request(number))
        for number, client in enumerate(self.clients):
            self._check(number, client)
        time.sleep(0.002)  # they are there to be disturbed, not to take a processor for as long as a test waits

    def _key(self, number: int, what: bytes) -> bytes:
        return b"/%s/%d/%s" % (self._name, number, what)

    def _request(self, number: int) -> bytes:
        turn = self.rounds
        value, log, count, item, once = (self._key(number, each) for each in (b"v", b"log", b"n", b"q", b"once"))
        return (
            wire.set_(value, b"%d" % turn)
            + wire.get(value)
            + wire.add(count, 1)
            + wire.append(log, b"%d," % (turn % 10))
            + wire.queue_push(item, b"%d.1" % turn)
            + wire.queue_push(item, b"%d.2" % turn)
            + wire.queue_pop(item)
            + wire.compare_set(once, b"%d" % turn if turn else b"", b"%d" % (turn + 1))
            + wire.multi_set([(value, b"m%d" % turn), (value + b"2", b"")])
            + wire.keyed(wire.MULTI_GET, [value, log])
            + wire.delete(value)
            + wire.delete(value)
            + wire.keyed(wire.CHECK, [value])
            + wire.keyed(wire.WAIT, [log])
            + wire.queue_pop(item)
            + wire.barrier(self._key(number, b"barrier"), turn + 1)
            + wire.add(self._key(0, b"all"), 1)
        )

    def _check(self, number: int, client: Raw) -> None:
        turn = self.rounds
        log = b"".join(b"%d," % (each % 10) for each in range(turn + 1))
        text, i64 = client.receive_text, client.receive_i64
        seen: list[object] = [text(), i64(), i64(), text(), text(), text(), text()]
        seen += [i64(), i64(), client.receive(1), client.receive(1), i64(), text(), client.receive(1)]
        assert seen == [
            *(b"%d" % turn, turn + 1, 2, b"%d.1" % turn, b"%d" % (turn + 1), b"m%d" % turn, log),
            *(1, 0, b"\1", wire.STOP_WAITING, 1, b"%d.2" % turn, wire.STOP_WAITING),
        ], (number, turn, seen)
        total, clients = i64(), len(self.clients)  # in any order among the clients
        assert turn * clients < total <= (turn + 1) * clients, (total, turn)


@contextmanager
def repeated(attack: Callable[[], object]) -> Iterator[Callable[[], int]]:
    """``attack`` again and again in a thread until the block ends; gives how often it was completed."""
    done, stopping = 0, threading.Event()

    def run() -> int:
        nonlocal done
        while not stopping.is_set():
            attack()
            done += 1
        return done

    with ThreadPoolExecutor(1) as pool:
        attacker = pool.submit(run)
        try:
            yield lambda: attacker.result() if attacker.done() else done  # its error
        finally:
            stopping.set()
        attacker.result(PATIENCE)


class Crowd(list[Raw]):
    """Connections that are closed together."""

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self:
            client.close()


def standing(port: int, *data: bytes, validated: bool = True, count: int = 1) -> Crowd:
    """``count`` connections for each of ``data``, which have sent it and do nothing else."""
    crowd = Crowd()
    try:
        for each in data * count:
            crowd.append(Raw(port, validated=validated))
            crowd[-1].send(each)
    except BaseException:
        crowd.__exit__()
        raise
    return crowd


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """All their threads, for the length of the block."""
    try:
        for pid in pids:
            stop(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
