"""Coordination with the native store: ``NativeCoordination`` is the ``CoordinationBackend`` of ``parallel``.

One connection per session, in our own framing; one thread per process for all of them (``reactor``). The endpoint is
served by the node on which its address can be bound, and there by the first agent to bind it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rdzv_plugins.coordination import KeyValue, OnEvents
from rdzv_plugins.endpoints import Endpoint, require_name
from rdzv_plugins.errors import AccessRefused, Compacted, ConnectionLost, EndpointUnreachable, RdzvError, RunIdMismatch
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.coordination import frames
from rdzv_plugins.kvstore.coordination.framed_connection import FramedConnection, Lease
from rdzv_plugins.kvstore.coordination.reactor import CancellableWatch, StoppableCall, close_in_children
from rdzv_plugins.kvstore.native.framing import (
    DONE,
    NO_RUN,
    VERSION,
    NotNative,
    OtherVersion,
    frame,
    hello,
    receive_reply,
    request_statistics,
)
from rdzv_plugins.kvstore.native.limits import StoreLimits, raise_file_limit
from rdzv_plugins.kvstore.native.server import StoreServer, version
from rdzv_plugins.kvstore.sockets.listening import bind_if_here
from rdzv_plugins.kvstore.sockets.reach import reach, try_connect
from rdzv_plugins.kvstore.tcpstore.listener import Stranger, look_if_silent, stranger_at, telling_whose, unknown
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.security.certificates import NodeCertificates, certificates_of
from rdzv_plugins.security.job_token import JobToken, token_of

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_LEAST_TTL, _MOST_TTL = 0.1, 3600.0
_OUR_NUMBER = 1
_TOO_MANY = "too many sessions"
_FULL = "rdzv status shows whose they are; the limit is an option (--rdzv-conf) of who serves: rdzv serve, or a node."
_SAME_VERSION = "Install the same version of rdzv-plugins on every node, and where rdzv serve runs."
_VERSION_S, _LONGEST_VERSION = 1.0, 40
_ATTEMPT_S, _PAUSE_S = 5.0, 0.5
_SECOND_WORD_S = 2.0
"""A server that continues reads all connections in one turn, but may have much to read."""


class SessionHandshake:
    """Opens a session of ``ttl`` seconds with ``service``; the attributes are set once ``greet`` has returned "".

    Raises ``ValueError`` for an impossible ``ttl``.
    """

    opened: frames.Opened
    local_addr: str
    remote_addr: str
    asked_at: float

    def __init__(self, service: NativeCoordination, ttl: float) -> None:
        if not _LEAST_TTL <= ttl <= _MOST_TTL:
            raise ValueError(f"ttl={ttl} is not from {_LEAST_TTL} to {_MOST_TTL:g} seconds")
        self._service = service
        self._request = frame(_OUR_NUMBER, frames.OPEN, frames.open_(round(ttl * 1000), service.run_id))

    def greet(self, connection: socket.socket) -> str:
        """A ``Greeting``. Raises ``EndpointUnreachable``, ``AccessRefused``, ``RunIdMismatch`` or ``RunIdMissing``."""
        service = self._service
        close_in_children(connection, service.runtime)
        # here, where an error of a connection that has just ended leads to another attempt
        self.local_addr = _without_mapping(connection.getsockname()[0])
        self.remote_addr = _without_mapping(connection.getpeername()[0])
        self.asked_at = service.runtime.now()
        try:
            hello(
                connection,
                ahead=self._request,
                on_sent=lambda: self._look_if_silent(connection),
                token=service.token,
                run_id=service.run_id,
                runtime=service.runtime,
            )
            status, payload = receive_reply(connection)
        except NotNative as error:
            raise self._unexpected(f"it answers {error.args[0]!r}") from None
        except OtherVersion as error:
            raise EndpointUnreachable(
                f"the native store at {service.endpoint} speaks version {error.args[0]} of the framing, this node "
                f"version {VERSION}",
                remedy=_SAME_VERSION,
            ) from None
        except TimeoutError:
            return "something accepts connections there, but does not answer as a native store of rdzv-plugins"
        except ConnectionError:  # a native store that is just ending, or has no descriptors left, does that, too
            return (
                "something accepts connections there and hangs up: is it a native store of rdzv-plugins, or torch's "
                "TCPStore or another program?"
            )
        return self._read(status, payload, connection)

    def _look_if_silent(self, connection: socket.socket) -> None:
        """Raise the error that says who is silent there, if that is known before the whole time-out has passed."""
        stranger, runtime = self._service.stranger, self._service.runtime
        # under TLS, whoever could be named is asked in plain, and what is silent here has spoken TLS
        if stranger is not None and self._service.tls is None:
            torchs = self._not_native("it answers as torch's TCPStore does")
            look_if_silent(connection, stranger, torchs, runtime)

    def _unexpected(self, why: str) -> EndpointUnreachable:
        """What is known about who answers there; else only that it is no native store."""
        stranger = self._service.stranger
        return (stranger() if stranger is not None else None) or self._not_native(why)

    def _read(self, status: int, payload: bytes, connection: socket.socket) -> str:
        endpoint, run_id = self._service.endpoint, self._service.run_id
        if status == frames.OTHER_RUN:
            served = payload.decode(errors="backslashreplace")
            if served == NO_RUN:
                raise self._unexpected("it is the control store of a job with another backend")
            raise RunIdMismatch(
                f"{endpoint} serves run {served!r}, and this node belongs to run {run_id!r}",
                remedy="Give all nodes of a job the same --rdzv-id, and two jobs two endpoints.",
            )
        if status == frames.FOREIGN_RUN:
            raise AccessRefused(
                f"run {run_id!r} at {endpoint} was opened with another token",
                remedy="Choose another --rdzv-id, or give this node the token of that run.",
            )
        if status != DONE:
            why = payload.decode(errors="backslashreplace")
            full = why.startswith(_TOO_MANY)
            raise EndpointUnreachable(
                f"the native store at {endpoint} did not open a session: {why}",
                remedy=_FULL if full else _SAME_VERSION,
            )
        try:
            self.opened = frames.decoded(frames.opened, payload)
        except ValueError as error:  # it has greeted as a native store, so it is one
            logger.debug("%s: %s", endpoint, error)
            raise EndpointUnreachable(
                f"the native store at {endpoint} is of {_version_at(connection)}, this node of rdzv-plugins "
                f"{version()}: their protocols differ",
                remedy=_SAME_VERSION,
            ) from None
        if self.opened.any_run:
            require_name(str(endpoint), named=self._service.named)
        return ""

    def _not_native(self, why: str) -> EndpointUnreachable:
        return EndpointUnreachable(
            f"{self._service.endpoint} is not a native store of rdzv-plugins: it is torch's TCPStore or another "
            f"program ({why})",
            remedy="Do all nodes use the same --rdzv-backend? Else another program has that port: choose another one, "
            "the same on every node.",
        )


def _version_at(connection: socket.socket) -> str:
    """The version of the native store that has greeted, in words; it need not know what it is asked."""
    connection.settimeout(_VERSION_S)
    try:
        found = request_statistics(connection)["server"]["version"]
        return f"rdzv-plugins {printable(str(found), _LONGEST_VERSION)}"
    except (OSError, RdzvError, ValueError, LookupError, TypeError):
        return "another version of rdzv-plugins"


def _without_mapping(address: str) -> str:
    return address.removeprefix("::ffff:") if "." in address else address


class NativeSession:
    """A session with the native store. Opened by ``NativeCoordination``."""

    def __init__(
        self,
        service: NativeCoordination,
        connection: socket.socket,
        opening: SessionHandshake,
        ttl: float,
        on_lost: Callable[[ConnectionLost], None],
    ) -> None:
        self._service, self._endpoint = service, service.endpoint
        self._runtime = runtime = service.runtime
        self.ttl, self.local_addr, self.remote_addr = ttl, opening.local_addr, opening.remote_addr
        self.seen_as = opening.opened.seen_as
        """This machine's address as the server sees it: behind address translation it differs from ``local_addr``."""
        self._lease = Lease(str(self._endpoint), ttl, service.outage, opening.asked_at)
        self._on_lost = StoppableCall(on_lost, runtime)
        self._lock = runtime.RLock()  # protects the watches; a signal handler may close
        self._watches: dict[int, StoppableCall] = {}
        self._last_watch = 0
        self._connection = FramedConnection(
            connection,
            self._lease,
            frames.KEEP_ALIVE,
            on_push=self._pushed,
            on_end=self._ended,
            on_silent=self._fell_silent,
            runtime=runtime,
        )

    def start(self) -> None:
        """Begin to keep the session alive; called by whoever opened it. It may be lost from now on."""
        self._connection.start()

    @property
    def known_until(self) -> float:
        return self._lease.known_until

    def create(self, key: str, value: bytes, *, ephemeral: bool = False, timeout: float) -> tuple[bool, KeyValue]:
        payload = frames.put({key: value}, ephemeral=ephemeral, guard=(key, 0))
        changed = self._ask(frames.PUT, payload, frames.changed, timeout, f"creating {key!r}")
        return changed.done, KeyValue(key, value if changed.done else changed.value, changed.revision)

    def put(
        self, items: Mapping[str, bytes], *, ephemeral: bool = False, guard: KeyValue | None = None, timeout: float
    ) -> int | None:
        """See ``Session.put``; done in one transaction. Raises ``ValueError`` for more than 16 MiB."""
        payload = frames.put(items, ephemeral=ephemeral, guard=_condition(guard))
        changed = self._ask(frames.PUT, payload, frames.changed, timeout, f"writing {some(map(repr, items), 3)}")
        return changed.revision if changed.done else None

    def delete(self, keys: Iterable[str], *, guard: KeyValue | None = None, timeout: float) -> bool:
        """See ``Session.delete``; done in one transaction. Raises ``ValueError`` for more than 16 MiB of names."""
        keys = tuple(keys)
        payload = frames.delete(keys, guard=_condition(guard))
        return self._ask(frames.DELETE, payload, frames.changed, timeout, f"deleting {some(map(repr, keys), 3)}").done

    def list(self, prefix: str, *, timeout: float) -> tuple[Sequence[KeyValue], int]:
        return self._ask(frames.LIST, frames.list_(prefix), frames.listed, timeout, f"listing {prefix!r}")

    def watch(self, prefix: str, on_events: OnEvents, *, after: int = 0, timeout: float) -> CancellableWatch:
        """See ``Session.watch``. An error in ``on_events`` ends the session, as it has missed an event."""
        if self._connection.forked:  # the lock may be held for ever
            raise self._connection.lost()
        call = StoppableCall(on_events, self._runtime)
        with self._lock:
            self._last_watch = number = self._last_watch + 1
            self._watches[number] = call  # before the request: pushes follow right after its answer
        try:
            self._ask(
                frames.WATCH, frames.watch(number, prefix, after), lambda _: None, timeout, f"watching {prefix!r}"
            )
        except BaseException:
            self._unwatch(number, call)  # after a time-out it may still be established
            raise
        return CancellableWatch(functools.partial(self._unwatch, number, call))

    def close(self) -> None:
        """See ``Session.close``. Waits for a running call-back, so hold no lock that it takes.

        None begins afterwards.
        """
        self._connection.give_up(f"the session with {self._endpoint} has been closed")
        if self._connection.forked:  # no call can be running here, but its lock may be held for ever
            return
        with self._lock:
            calls = [self._on_lost, *self._watches.values()]
            self._watches.clear()
        for call in calls:
            call.stop()

    def _unwatch(self, number: int, call: StoppableCall) -> None:
        if self._connection.forked:
            return
        with self._lock:
            known = self._watches.pop(number, None)
        if known is not None:
            self._connection.tell(frames.UNWATCH, frames.unwatch(number))
        call.stop()

    def _ask(
        self, operation: int, payload: bytes, decode: Callable[[bytes], Result], timeout: float, what: str
    ) -> Result:
        if len(payload) > frames.MOST_PAYLOAD:
            raise ValueError(f"{what}: {len(payload)} bytes are too much for one request ({frames.MOST_PAYLOAD} bytes)")
        try:
            status, answer = self._connection.request(operation, payload, timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{what}: {error}") from None
        if status == DONE:
            try:
                return frames.decoded(decode, answer)
            except ValueError as error:
                self._connection.give_up(f"{self._endpoint} sent a malformed answer: {error}")
                raise self._connection.lost() from None
        text = answer.decode(errors="backslashreplace")
        if status == frames.COMPACTED:
            raise Compacted(f"{what}: {text}", remedy="List the keys, and watch after the revision of that answer.")
        raise RdzvError(f"{self._endpoint} refuses {what}: {text}")

    def _pushed(self, status: int, payload: bytes) -> None:
        if status == frames.PUSH:
            call = self._watches.get(frames.decoded(frames.pushed_to, payload))
            if call is not None:  # otherwise it was cancelled
                events = frames.decoded(frames.pushed, payload)
                if events:
                    call(events)

    def _fell_silent(self) -> None:
        self._runtime.Thread(target=self._look_again, name="rdzv-second-look").start()

    def _look_again(self) -> None:
        """Ask on other connections until this session, which is silent, is heard from again or has ended.

        A server that stands still answers nobody, and goes on with all sessions when it continues. But one that answers
        elsewhere has most likely ended this session, or the path of its packets was cut: TCP would find out only when
        it sends again, and it doubles its pauses. Then the session ends.
        """
        silence = self._connection.silence  # more than ``ttl`` if this process was late, or stood still itself
        since, pause = self._runtime.monotonic() - silence, self._runtime.Event()  # never set: used for waiting
        self._lease.warn_silent(silence)
        while self._connection.is_silent:
            if self._service.answers():
                pause.wait(_SECOND_WORD_S)
                if self._connection.is_silent:
                    why = f"{self._endpoint} answers others, but said nothing in this session for {self.ttl:g} s"
                    self._connection.give_up(why)
                break
            pause.wait(_PAUSE_S)
        if self._connection.is_open:
            self._lease.warn_back(self._runtime.monotonic() - since)

    def _ended(self, error: ConnectionLost) -> None:
        self._service.forget(self)
        logger.debug("session %s ended: %s", self.local_addr, error)
        self._on_lost(error)


class NativeCoordination:
    """Coordination of run ``run_id`` by the native store at ``endpoint``. Thread-safe.

    ``server`` is given if this process serves it, and is closed with the backend. ``name`` is the backend's; ``who``
    says in messages who should be listening there, for example "the agent of rank 0". A session goes on for
    ``outage_timeout`` seconds while the server does not answer, and at least for its time to live: a server that has
    only stood still knows its sessions. If not ``named``, the run id is the default, which may not be used with a
    server of many runs. ``stranger`` is asked when the listener does not answer as a native store, unless there is
    ``tls``, under which everything is sent then. ``token`` is the job's, if it has one.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        run_id: str,
        *,
        name: str,
        server: StoreServer | None = None,
        who: str,
        outage_timeout: float = 0.0,
        named: bool = True,
        stranger: Stranger = unknown,
        token: JobToken | None = None,
        tls: NodeCertificates | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self.endpoint, self.run_id, self.named, self.token, self.tls = endpoint, run_id, named, token, tls
        self.name, self.hosts_service = name, server is not None
        self._server, self._who = server, who
        self.outage, self.runtime = outage_timeout, runtime
        self.stranger: Stranger | None = stranger
        """Whom to ask when something else listens there; None once it was of use: asking takes some seconds."""
        self._sessions: dict[NativeSession, None] = {}  # in the order in which they were opened

    def look(self, timeout: float) -> tuple[socket.socket | None, str]:
        """Do what ``try_connect`` does: shows whether the server answers, and opens no session.

        Also raises ``NotNative`` or ``OtherVersion`` if that is all that answers at the name's addresses.
        """
        foreign: NotNative | OtherVersion | None = None

        def greet(connection: socket.socket) -> str:
            nonlocal foreign
            try:
                hello(connection, token=self.token, run_id=self.run_id, runtime=self.runtime)
            except (NotNative, OtherVersion) as error:  # also a ConnectionError, which is no answer at all
                foreign = error
                return str(error)
            return ""

        connection, reason = try_connect(self.endpoint, timeout, greet, tls=self.tls, runtime=self.runtime)
        if connection is None and foreign is not None:
            raise foreign
        return connection, reason

    def answers(self) -> bool:
        """Whether the server answers on another connection, within some seconds."""
        try:
            connection, reason = self.look(_ATTEMPT_S)
        # another program or job has its port now
        except (NotNative, OtherVersion, AccessRefused, RunIdMismatch) as error:
            connection, reason = None, repr(error)
        if connection is None:
            logger.debug("%s: %s", self.endpoint, reason)
            return False
        connection.close()
        return True

    def open_session(self, ttl: float, *, on_lost: Callable[[ConnectionLost], None], timeout: float) -> NativeSession:
        """See ``CoordinationBackend.open_session``; ``ttl`` from 0.1 s to an hour, else ``ValueError``.

        A session that is lost at once may call ``on_lost`` before this returns.
        """
        opening = SessionHandshake(self, ttl)
        connection = reach(self.endpoint, timeout, self._who, opening.greet, tls=self.tls, runtime=self.runtime)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            session = NativeSession(self, connection, opening, ttl, on_lost)
            undo.callback(self.forget, session)
            self._sessions[session] = None
            session.start()
            undo.pop_all()
        self.stranger = None
        return session

    def forget(self, session: NativeSession) -> None:
        """Do not close this session, which has ended."""
        self._sessions.pop(session, None)

    def close(self) -> None:
        """End the sessions that are still open, and the server if this process has it. May be repeated."""
        for session in list(self._sessions):
            session.close()
        if self._server is not None:
            self._server.close()


def _condition(guard: KeyValue | None) -> tuple[str, int] | None:
    return None if guard is None else (guard.key, guard.revision)


WHO = "the node that serves the rendezvous"
"""The name used for the serving node in messages."""


def open_service(request: Request, name: str, runtime: Runtime = SYSTEM) -> NativeCoordination:
    """Serve the request's target, an ``Endpoint``, or be a client of it, for the backend called ``name``.

    Raises ``AddressInUse`` if ``is_host=true`` cannot be satisfied.
    """
    endpoint: Endpoint = request.target
    server = serve_if_here(request, endpoint, runtime)
    if server is not None:
        endpoint = Endpoint(endpoint.host, server.port)
    return client_of(endpoint, request, name, server, runtime)


def serve_if_here(request: Request, endpoint: Endpoint, runtime: Runtime = SYSTEM) -> StoreServer | None:
    """Serve ``endpoint`` if this node is the one to do so. Raises ``AddressInUse``."""
    listener = listen_for(request, endpoint, runtime)
    if listener is None:
        return None
    raise_file_limit()
    token, tls = token_of(request, runtime), certificates_of(request)
    server = StoreServer(
        threads=request.options.store_threads,
        listen_fd=listener.detach(),
        name="rendezvous",
        run=request.run_id,
        tokens=token.accepted(request.run_id) if token is not None else (),
        tls=tls,
        limits=StoreLimits.among(request.options),
        runtime=runtime,
    )
    logger.debug("serving the rendezvous of run %s at %s", request.run_id, Endpoint(endpoint.host, server.port))
    return server


def listen_for(request: Request, endpoint: Endpoint, runtime: Runtime = SYSTEM) -> socket.socket | None:
    """The socket on which this node has to serve ``endpoint``; None if it is a client. Raises ``AddressInUse``."""
    with telling_whose(request, endpoint):
        return bind_if_here(endpoint, request.options.is_host, f"the rendezvous of run {request.run_id!r}", runtime)


def client_of(
    endpoint: Endpoint, request: Request, name: str, server: StoreServer | None = None, runtime: Runtime = SYSTEM
) -> NativeCoordination:
    """The service at ``endpoint`` as this node sees it; ``server`` is this process's own. Nothing is sent yet."""
    tls = certificates_of(request)
    if tls is not None and server is not None:
        tls = tls.within_one_process()
    return NativeCoordination(
        endpoint,
        request.run_id,
        name=name,
        server=server,
        who=WHO,
        outage_timeout=request.options.outage_timeout,
        named=request.is_named,
        stranger=functools.partial(stranger_at, request, endpoint),
        token=token_of(request, runtime),
        tls=tls,
        runtime=runtime,
    )
