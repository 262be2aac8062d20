"""A way to a member that a test can hold up: answers that get lost, requests that get stuck half-way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from harness import wait_until

from rdzv_plugins.endpoints import Endpoint

SECONDS = 60.0


class Relay:
    """Passes on what clients and a member say to each other. ``with Relay(member.endpoint) as relay``."""

    def __init__(self, target: Endpoint) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self._changed = threading.Condition()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._answers_held = False
        self._allowance: int | None = None  # bytes that clients may still send
        self._breaks: dict[bool, int] = {}  # after so many more bytes of answers (True), or requests (False)
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def is_used(self) -> bool:
        """A client has come this way, and has not left."""
        with self._changed:
            return bool(self._pairs)

    def hold_answers(self) -> None:
        """From now on the member is heard and cannot be heard."""
        with self._changed:
            self._answers_held = True

    def hold_requests(self, after: int) -> None:
        """Let so many more bytes of the clients through, and no more."""
        with self._changed:
            self._allowance = after

    def wait_held(self) -> None:
        """Until a client has sent more than it may."""
        wait_until(lambda: self._allowance == 0, SECONDS, lambda: f"{self._allowance} bytes left")

    def release(self) -> None:
        """Let everything through."""
        with self._changed:
            self._answers_held, self._allowance = False, None
            self._changed.notify_all()

    def break_once(self, *, answers: bool, after: int) -> None:
        """Break all connections after so many more bytes that way; from then on everything comes through."""
        with self._changed:
            self._breaks = {answers: after}

    @property
    def has_broken(self) -> bool:
        """What ``break_once`` asked for has happened."""
        return not self._breaks

    def cut(self) -> None:
        """Nobody comes through any more: what was under way is lost, and new connections are refused."""
        self._shut(self._listener)
        for thread in self._threads[:1]:  # now there will be no other pair
            thread.join(SECONDS)
        with self._changed:
            for pair in self._pairs:
                self._shut(*pair)
        self.release()
        for thread in self._threads:
            thread.join(SECONDS)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    client, _ = self._listener.accept()
                except OSError:  # cut
                    return
                try:
                    server = socket.create_connection((self._target.host, self._target.port), SECONDS)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                with self._changed:  # by this thread: once it has ended, all pairs are known
                    self._pairs.append((client, server))
                self._start(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        pair = client, server
        with client, server:
            answers = threading.Thread(target=self._pass_on, args=(server, client, True))
            answers.start()
            self._pass_on(client, server, False)
            answers.join()
            with self._changed:
                self._pairs.remove(pair)

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):  # nothing: its end
                while data:
                    part = self._may_pass(data, answers)
                    target.sendall(part)
                    data = data[len(part) :]
                    self._break_when_due(answers)
        except OSError:
            pass
        self._shut(source, target)

    @staticmethod
    def _shut(*sockets: socket.socket) -> None:
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _may_pass(self, data: bytes, answers: bool) -> bytes:
        """As much of the data as may go now; waits while that is nothing."""
        with self._changed:
            if answers in self._breaks:
                data = data[: self._breaks[answers]]
                self._breaks[answers] -= len(data)
            if answers:
                assert self._changed.wait_for(lambda: not self._answers_held, SECONDS)
                return data
            assert self._changed.wait_for(lambda: self._allowance != 0, SECONDS)
            if self._allowance is not None:
                data = data[: self._allowance]
                self._allowance -= len(data)
            return data

    def _break_when_due(self, answers: bool) -> None:
        with self._changed:
            if self._breaks.get(answers) == 0:
                self._breaks = {}
                for pair in self._pairs:
                    self._shut(*pair)
