"""Reaching an endpoint with plain sockets, so that failures can be told apart and named.

torch's client reports the same text for every cause; here a name that does not resolve, a refusal, a time-out and a
missing route are different sentences. No reverse look-up is ever made.

Another thread can end a wait on a socket when what is waited for can no longer come: a socket that is shut down wakes
whoever is blocked in it, even if the machine at the other end vanished silently and TCP would go on for minutes. Every
wait of an agent in the store of a round is under such an ``CancelToken``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.runtime import AF_INET, AF_INET6, SHUT_RDWR, SOCK_DGRAM, SOCK_STREAM, SYSTEM, Runtime, gaierror
from rdzv_plugins.security.certificates import NodeCertificates
from rdzv_plugins.timing import Reporting, growing

if TYPE_CHECKING:
    import socket


class Cancelled(ConnectionError):
    """The wait was ended; ``str()`` says why."""


class CancelToken:
    """An interruption that comes at most once, and stays.

    Thread-safe; ``interrupt`` never blocks, so any thread may call it.
    """

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._lock = runtime.Lock()  # held for system calls that return at once
        self._sockets: dict[socket.socket, None] = {}  # in the order in which they came
        self._came = runtime.Event()
        self.reason = ""
        """Why it came; "" while it has not."""

    def interrupt(self, reason: str) -> None:
        """End all waits under it, now and later, for ``reason``. Only the first reason counts."""
        with self._lock:
            self.reason = self.reason or reason
            for each in self._sockets:
                _shut_down(each)
        self._came.set()

    def attach(self, connection: socket.socket) -> None:
        """Shut this connection down when the interruption comes, or at once if it has come."""
        with self._lock:
            self._sockets[connection] = None
            if self.reason:
                _shut_down(connection)

    def detach(self, connection: socket.socket) -> None:
        """Let go of a connection before it is closed: its descriptor may soon belong to another file.

        May be repeated.
        """
        with self._lock:
            self._sockets.pop(connection, None)

    @contextlib.contextmanager
    def over(self, connection: socket.socket) -> Iterator[None]:
        """Attached within the block. Raises ``Cancelled`` if the interruption came before or during it."""
        self.attach(connection)
        try:
            yield
        finally:
            self.detach(connection)
            self.check()

    def check(self) -> None:
        """Raise ``Cancelled`` if the interruption has come."""
        if self.reason:
            raise Cancelled(self.reason)

    def sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``, or less if the interruption comes."""
        self._came.wait(seconds)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has already gone
        connection.shutdown(SHUT_RDWR)


logger = logging.getLogger(__name__)

_ATTEMPT_S = 10.0
_LOOK_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
REFUSED = "connection refused (nobody listens there yet)"
"""The reason of ``try_connect`` if the host answers, and says that nobody listens."""


Greeting = Callable[["socket.socket"], str]
"""Talks to a fresh connection.

Returns "" when the right program answered, otherwise what is wrong; raises ``EndpointUnreachable`` when trying again is
pointless.
"""


def wait_reachable(
    endpoint: Endpoint, timeout: float, who: str, greet: Greeting | None = None, runtime: Runtime = SYSTEM
) -> str:
    """Do as ``reach`` does, then hang up. Returns this machine's address on the connection: peers can dial it."""
    with reach(endpoint, timeout, who, greet, runtime=runtime) as connection:
        return str(connection.getsockname()[0])


def reach(
    endpoint: Endpoint,
    timeout: float,
    who: str,
    greet: Greeting | None = None,
    *,
    interruption: CancelToken | None = None,
    tls: NodeCertificates | None = None,
    runtime: Runtime = SYSTEM,
) -> socket.socket:
    """Connect to ``endpoint`` and greet, again and again for up to ``timeout`` seconds. Returns the connection.

    ``who`` says in messages who should be listening; with ``tls`` everything is sent under TLS. Raises
    ``EndpointUnreachable``, at once when ``interruption`` comes.
    """
    interruption = interruption or CancelToken(runtime)
    start = runtime.monotonic()
    deadline = start + timeout
    reporting = Reporting(runtime=runtime)
    pauses = growing(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, random=runtime.random)
    while True:
        limit = min(_ATTEMPT_S, max(0.1, deadline - runtime.monotonic()))
        connection, reason = try_connect(endpoint, limit, greet, interruption=interruption, tls=tls, runtime=runtime)
        if connection is not None:
            return connection
        if interruption.reason:
            raise EndpointUnreachable(f"{who} at {endpoint} is no longer waited for: {reason}")
        now = runtime.monotonic()
        if now >= deadline:
            raise EndpointUnreachable(
                f"{who} at {endpoint} could not be reached within {timeout:g} s: {reason}", remedy=remedy_of(reason)
            )
        if reporting.is_due():
            logger.info("waiting for %s at %s: %s (%.0f s of %g s)", who, endpoint, reason, now - start, timeout)
        interruption.sleep(min(next(pauses), max(0.0, deadline - now)))


def look(endpoint: Endpoint, who: str, greet: Greeting | None = None, runtime: Runtime = SYSTEM) -> bool:
    """Whether ``who`` answers at ``endpoint`` now; logs a warning if nobody listens there yet, as before a start.

    Makes one attempt of some seconds. Raises ``EndpointUnreachable`` if it fails for another reason.
    """
    connection, reason = try_connect(endpoint, _LOOK_S, greet, runtime=runtime)
    if connection is not None:
        connection.close()
        return True
    if reason != REFUSED:
        raise EndpointUnreachable(f"{who} at {endpoint} cannot be reached: {reason}", remedy=remedy_of(reason))
    logger.warning("nobody listens at %s yet: this node would wait there for %s", endpoint, who)
    return False


Address = tuple["socket.AddressFamily", "socket.SocketKind", int, str, Any]


def resolve(host: str, port: int, runtime: Runtime = SYSTEM) -> Sequence[Address]:
    """The addresses of ``host``, as returned by ``socket.getaddrinfo``. Raises ``socket.gaierror``.

    ``localhost`` is the loopback interface also on a machine whose files do not say so.
    """
    # bytes: for text, Python loads its tables for international names (256 KiB), which hosts here do not use
    name = host.encode() if host.isascii() else host
    try:
        return runtime.getaddrinfo(name, port, type=SOCK_STREAM)
    except gaierror:
        if host != "localhost":
            raise
        return runtime.getaddrinfo(None, port, type=SOCK_STREAM)


def try_connect(
    endpoint: Endpoint,
    timeout: float,
    greet: Greeting | None,
    *,
    interruption: CancelToken | None = None,
    tls: NodeCertificates | None = None,
    runtime: Runtime = SYSTEM,
) -> tuple[socket.socket | None, str]:
    """Return (connection, "") on success, else (None, reason): at once, with its reason, if ``interruption`` comes.

    Looking up a name takes as long as this machine's resolver allows. With ``tls`` everything is sent under TLS; raises
    ``AccessRefused`` for certificates that are not accepted, and if there is no TLS.
    """
    interruption = interruption or CancelToken(runtime)
    try:
        found = resolve(endpoint.host, endpoint.port, runtime)
    except gaierror as error:
        return None, f"the name does not resolve ({error.strerror})"
    reason = "the name has no address"
    for family, kind, protocol, _, address in found:
        with contextlib.ExitStack() as unless_kept:
            try:
                connection = unless_kept.enter_context(runtime.socket(family, kind, protocol))
                connection.settimeout(timeout)
                with interruption.over(connection):
                    connection.connect(address)
                    reason = greet(connection) if greet and tls is None else ""
                if tls is not None:
                    connection = unless_kept.enter_context(_secured(connection, tls, endpoint, interruption))
                    with interruption.over(connection):
                        reason = greet(connection) if greet else ""
                if not reason:
                    unless_kept.pop_all()
                    return connection, ""
            except Cancelled as error:
                return None, str(error)
            except ConnectionRefusedError:
                reason = REFUSED
            except TimeoutError:
                reason = "no answer (machine down, or a firewall drops the packets)"
            except OSError as error:
                reason = reason_of(error)
                if error.errno == errno.ENETUNREACH and is_own_address(endpoint.host, runtime):
                    reason += ", although it is this machine's own: is the loopback interface up (ip link set lo up)?"
    return None, reason


def reason_of(error: OSError) -> str:
    """The system's words for an error, or this program's own if it is one of those."""
    return error.strerror.lower() if error.strerror else str(error)


def dial(
    host: str, port: int, timeout: float, *, tls: NodeCertificates | None = None, runtime: Runtime = SYSTEM
) -> socket.socket:
    """A connection to the first address of ``host`` that accepts it within ``timeout`` seconds. Raises ``OSError``.

    With ``tls`` it is under TLS; then also raises ``AccessRefused``, as ``try_connect`` does.
    """
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in resolve(host, port, runtime):
        connection = runtime.socket(family, kind, protocol)
        connection.settimeout(timeout)
        try:
            connection.connect(address)
            return connection if tls is None else _secured(connection, tls, Endpoint(host, port), CancelToken(runtime))
        except OSError as error:
            connection.close()
            failure = error
    raise failure


def _secured(
    connection: socket.socket, tls: NodeCertificates, endpoint: Endpoint, interruption: CancelToken
) -> socket.socket:
    from rdzv_plugins.kvstore.sockets.secured import secure  # slow to import, and needed only with TLS

    return secure(connection, tls, endpoint, interruption)


def remedy_of(reason: str) -> str:
    """What the user can do about a reason given by ``try_connect``."""
    if "resolve" in reason:
        return "Check the name, or give an IP address."
    if "accepts" in reason:
        return "Another program may use that port: check what listens there."
    if "refused" in reason:
        return "Is that node's agent running, with the same endpoint? Its own output says why not."
    return "Check the address, the route and the firewall between the nodes."


def is_own_address(host: str, runtime: Runtime = SYSTEM) -> bool:
    """Whether ``host`` is an address of this machine; decided by binding to it, never by names."""
    try:
        found = resolve(host, 0, runtime)
    except gaierror:
        return False
    for family, kind, protocol, _, address in found:
        with runtime.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
                return True
            except OSError:
                continue
    return False


def require_loopback(runtime: Runtime = SYSTEM) -> None:
    """Find out whether this machine can reach itself. Sends nothing. Raises ``EndpointUnreachable``."""
    failure = OSError()
    for family, address in ((AF_INET6, "::1"), (AF_INET, "127.0.0.1")):
        try:
            with runtime.socket(family, SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # a route look-up, no packet
                return
        except OSError as error:
            failure = error
    down = failure.errno in (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)
    raise EndpointUnreachable(
        f"the loopback interface (127.0.0.1) of this machine ({runtime.gethostname()}) does not work: "
        f"{reason_of(failure)}",
        remedy="Switch it on: ip link set lo up. A sandbox or container without a network needs its own."
        if down
        else "A sandbox or a security policy forbids it: allow connections to 127.0.0.1.",
    )


def default_address(runtime: Runtime = SYSTEM) -> str:
    """The address of the interface with the default route; loopback when there is none. Sends nothing."""
    for family, target in ((AF_INET, "192.0.2.1"), (AF_INET6, "2001:db8::1")):
        try:
            with runtime.socket(family, SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # documentation addresses: a route look-up, no packet
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
