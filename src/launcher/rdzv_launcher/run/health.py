"""How this agent is, for those who watch processes (kubelet, say): whether it lives, and whether its workers work.

First what is answered, from the signs of life of the main thread and the stage of the agent; then the server, which
answers HTTP requests for a few pages on a separate thread, whatever the other threads are doing.

Anyone who can reach the port may ask, and may ask wrongly, slowly or endlessly: a connection has a few seconds and a
few kilobytes, there are only a few at a time, and one too many costs the oldest its place. Nothing here ever blocks.
"""

from __future__ import annotations

import contextlib
import logging
import re
import selectors
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from msgspec import Struct

from rdzv_launcher.run.agent.state_machine import Stage
from rdzv_launcher.run.workers.worker_group import WorkerGroup
from rdzv_plugins.errors import AddressInUse, MissingDependency
from rdzv_plugins.kvstore.sockets.listening import bind
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import OwnThread

if TYPE_CHECKING:
    from rdzv_launcher.run.agent.loop import MainThreadHeartbeat
    from rdzv_launcher.run.metrics import MetricsPage

logger = logging.getLogger(__name__)

_SAYS: dict[Stage, str] = {
    "stopping": "the workers of this node are being stopped",
    "asking": "the workers of this node have failed: asking the others whether a node was lost",
    "counting": "the workers of this node have failed: asking whether the job has a restart left",
    "delaying": "the workers of this node have failed, and are about to be restarted",
    "finding": "the workers of this node have failed, and no restart is left",
    "ended": "this node is about to end",
}


def readiness(stage: Stage, group: WorkerGroup | None, waits_for: str) -> tuple[bool, str]:
    """True if they work in a complete round, or have finished. ``waits_for``: what the rendezvous says of its wait."""
    if stage == "joining":
        return False, f"waits for other nodes: {waits_for}" if waits_for else "waits for other nodes"
    if stage in _SAYS or group is None:
        return False, _SAYS.get(stage, "this node has no workers: the job continues, or is done, without it")
    where = f"node {group.group_rank} of {group.group_world_size}, workers: {group.local_world_size}"
    if stage == "working":
        return True, f"works: {where}"
    return True, f"done: {where}; waits for the others"


TEXT = "text/plain; charset=utf-8"
ALIVE, READY, METRICS = "/healthz", "/readyz", "/metrics"
_OK, _NOT_FOUND, _FAILED, _NOT_INSTALLED, _UNAVAILABLE = 200, 404, 500, 501, 503


class HttpAnswer(Struct, frozen=True):
    """An HTTP status, and a sentence for people, or content of the type ``kind``."""

    status: int
    text: str
    kind: str = TEXT


def metrics_alone(metrics: MetricsPage) -> Callable[[str], HttpAnswer]:
    """The answers of a process whose health nobody asks for here, by the path that is requested."""
    return lambda path: (
        metrics_answer(metrics) if path.partition("?")[0] == METRICS else HttpAnswer(_NOT_FOUND, f"there is {METRICS}")
    )


def metrics_answer(metrics: MetricsPage) -> HttpAnswer:
    """The metrics; a sentence if they are not available."""
    from rdzv_launcher.run.metrics import CONTENT_TYPE  # most launches have none

    try:
        return HttpAnswer(_OK, metrics.text(), CONTENT_TYPE)
    except MissingDependency as error:
        return HttpAnswer(_NOT_INSTALLED, f"{error}. {error.remedy}")
    except Exception as error:
        logger.debug("cannot read the metrics", exc_info=True)
        return HttpAnswer(_FAILED, f"cannot read the metrics: {type(error).__name__}: {error}")


class Health:
    """The health of one agent. Any thread may ask it."""

    def __init__(self, heartbeat: MainThreadHeartbeat, patience: float) -> None:
        """``patience``: by how many seconds the main thread may be later than it has said."""
        self._heartbeat, self._patience = heartbeat, patience
        self._readiness: Callable[[], tuple[bool, str]] = lambda: (False, "this node is about to join the others")
        self._metrics: MetricsPage | None = None

    def tell_by(self, readiness: Callable[[], tuple[bool, str]], metrics: MetricsPage | None = None) -> None:
        """From now on ``readiness`` says whether the workers work, and, in a sentence, what is going on. Any thread."""
        self._readiness, self._metrics = readiness, metrics

    def answer(self, path: str) -> HttpAnswer:
        path = path.partition("?")[0]
        if path == ALIVE:
            return self._alive()
        if path == READY:
            ready, text = self._state()
            return HttpAnswer(_OK if ready else _UNAVAILABLE, text)
        if path == METRICS:
            if self._metrics is None:
                return HttpAnswer(_UNAVAILABLE, "there are no metrics before this node begins to join the others")
            return metrics_answer(self._metrics)
        return HttpAnswer(_NOT_FOUND, f"there are {ALIVE}, {READY} and {METRICS}")

    def _alive(self) -> HttpAnswer:
        overdue = self._heartbeat.overdue()
        if overdue > self._patience:
            place = self._heartbeat.place()
            where = f", at {place}" if place else ""
            return HttpAnswer(_UNAVAILABLE, f"the agent's main thread has stood still for {overdue:.0f} s{where}")
        return HttpAnswer(_OK, f"alive: {self._state()[1]}")

    def _state(self) -> tuple[bool, str]:
        try:
            return self._readiness()
        except Exception as error:  # from a plug-in, which is asked what it waits for: the agent lives nevertheless
            logger.debug("cannot read the state of this agent", exc_info=True)
            return False, f"cannot tell what this agent waits for: {type(error).__name__}: {error}"


# as much of HTTP as a probe needs: http.server has a thread for each connection, a limit of time for each read and none
# for all of it, reads 6 MB of head, and spins when no descriptor is left
MOST_BYTES = 4096
"""The largest head of a request, in bytes."""
_LINE = rb"(?P<method>[A-Z]{1,16}) (?P<path>/[!-~]*) HTTP/1\.[01]\r?\n"


class Wanted(Struct, frozen=True):
    """What a complete request asks for, or the status with which it is refused."""

    path: str = ""
    refused: int = 0
    head: bool = False
    """The response is to be sent without its body."""


def read_request(data: bytes) -> Wanted | None:
    """Parse what has arrived so far; None: more is to come."""
    if not (b"\r\n\r\n" in data or b"\n\n" in data):
        return Wanted(refused=431) if len(data) >= MOST_BYTES else None
    line = re.match(_LINE, data)
    if line is None:
        return Wanted(refused=400)
    if line["method"] not in (b"GET", b"HEAD"):
        return Wanted(refused=405)
    return Wanted(line["path"].decode("ascii"), head=line["method"] == b"HEAD")


def response(status: int, text: str, *, kind: str = TEXT, head: bool = False) -> bytes:
    """The whole response; ``kind`` is its content type. The connection should be closed after it."""
    body = f"{text.removesuffix(chr(10))}\n".encode(errors="replace")
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head else body)


_SECONDS = 5.0
"""The time for one connection, from beginning to end."""
_MOST = 32
"""The most connections at a time."""


_PAUSE_S = 1.0
"""The pause before the next connection is accepted, if no descriptors are left for it."""


class _Connection:
    """What one client has sent, and the part of the answer that it has not taken yet."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.received = b""
        self.reply: bytes | None = None
        self.until = time.monotonic() + _SECONDS


class HealthServer:
    """Serves from ``open`` to ``close``. Its methods are for one thread."""

    def __init__(self, answer: Callable[[str], HttpAnswer], listener: socket.socket) -> None:
        """Takes over ``listener``.

        ``answer`` is called on the server's thread with the path of each request; raises nothing, waits for nobody.
        """
        self._answer, self._listener = answer, listener
        self._listener.setblocking(False)
        self._connections: dict[socket.socket, _Connection] = {}
        self._accept_at = 0.0
        self._wake_r, self._wake_w = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for each in (self._wake_r, self._listener):
            self._selector.register(each, selectors.EVENT_READ)
        self._closed = False
        self._thread = OwnThread(target=self._run, name="rdzv-health")
        self._thread.start()

    @staticmethod
    def open(health: Health, port: int) -> HealthServer | None:
        """Serve on this port on all interfaces. None if that is not possible, which is logged: the job goes on."""
        try:
            return HealthServer(health.answer, bind("", PortRange(port, port), f"--health-port={port}"))
        except (AddressInUse, OSError) as error:
            logger.warning("%s; the health endpoint is disabled, and the job continues", error)
            return None

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._closed = True
        self._wake_w.send(b"x")
        self._thread.join()
        for each in (*self._connections, self._listener, self._wake_r, self._wake_w):
            each.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._turn()
            except Exception:  # the next request has to be answered, whatever went wrong
                logger.exception("error in the health server")
                time.sleep(_PAUSE_S)

    def _turn(self) -> None:
        now = time.monotonic()
        times = [each.until for each in self._connections.values()]
        if self._accept_at:
            times.append(self._accept_at)
        for key, _ in self._selector.select(max(0.0, min(times) - now) if times else None):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is not self._wake_r:
                connection = self._connections.get(key.fileobj)  # type: ignore[call-overload]
                if connection is not None:  # otherwise it had to make room
                    self._serve(connection)
        now = time.monotonic()
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        for connection in [each for each in self._connections.values() if now >= each.until]:
            self._drop(connection)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return
        except OSError as error:  # no descriptors: the selector would report it again and again
            logger.debug("a connection to the health port was not accepted: %s", error)
            self._selector.unregister(self._listener)
            self._accept_at = time.monotonic() + _PAUSE_S
            return
        if len(self._connections) >= _MOST:
            self._drop(next(iter(self._connections.values())))
        client.setblocking(False)
        self._connections[client] = _Connection(client)
        self._selector.register(client, selectors.EVENT_READ)

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.reply is None:
                self._receive(connection)
            if connection.reply is not None:
                connection.reply = connection.reply[connection.client.send(connection.reply) :]
                if not connection.reply:
                    self._drop(connection)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # it is gone
            self._drop(connection)

    def _receive(self, connection: _Connection) -> None:
        data = connection.client.recv(MOST_BYTES)
        connection.received += data
        wanted = read_request(connection.received)
        if wanted is None:
            if not data:  # it has hung up
                self._drop(connection)
            return
        if wanted.refused:
            connection.reply = response(wanted.refused, "unsupported request")
        else:
            answer = self._answer(wanted.path)
            connection.reply = response(answer.status, answer.text, kind=answer.kind, head=wanted.head)
        self._selector.modify(connection.client, selectors.EVENT_WRITE)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.client, None) is not None:
            self._selector.unregister(connection.client)
            with contextlib.suppress(OSError):  # whatever it still sends must not cost it the answer
                connection.client.shutdown(socket.SHUT_WR)
            connection.client.close()
