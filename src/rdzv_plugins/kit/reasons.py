"""What is wrong with a service, in words, and what to do about it."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable
from rdzv_plugins.kit.security import Security
from rdzv_plugins.kvstore.sockets.reach import dial

_REFUSED = f"[Errno {errno.ECONNREFUSED}]"
_ENOUGH = 4096  # bytes
_PLAIN_TEXT = ("wrong version", "record layer")
"""In what OpenSSL says when the other side does not speak TLS."""


@dataclass(frozen=True)
class Reason:
    """Why a service cannot be used. ``final``: waiting will not help. ``access``: it answers, but not to this user."""

    text: str
    remedy: str = ""
    final: bool = False
    access: bool = False

    def error(self, lead: str, service: str) -> EndpointUnreachable:
        """Make an exception of it; ``lead`` says what was tried, ``service`` what should be there, such as "Redis"."""
        kind = AccessRefused if self.access else EndpointUnreachable
        return kind(f"{lead}: {self.text}", remedy=self.remedy or default_remedy(service))


class Unusable(Exception):
    """Raised by an author's coroutines: the service cannot be used now, for the given ``reason``."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


SILENT = Reason("it accepts connections, but does not answer (it stands still, or is something else)")
NO_ANSWER = Reason("no answer (machine down, or a firewall drops the packets)")
HANGS_UP = Reason("it hangs up")


def default_remedy(service: str) -> str:
    """The remedy that fits whatever may be wrong with a service."""
    return f"Check that {service} runs there, and the address, the route and the firewalls between."


def network_reason(error: BaseException, service: str, security: Security | None = None) -> Reason | None:
    """Explain an error of a socket or of TLS, or the one that it was raised from; None if it is neither."""
    for each in _chain(error):
        if isinstance(each, ssl.SSLError) and not isinstance(each, ssl.SSLEOFError):
            return _of_tls(each, service, security or Security())
        if isinstance(each, socket.gaierror):
            return Reason(f"the name does not resolve ({each.strerror})", "Check the name, or give an IP address.")
        if isinstance(each, ConnectionRefusedError) or (isinstance(each, OSError) and _REFUSED in str(each)):
            return Reason("connection refused (nobody listens there yet)", f"Is {service} running there, on that port?")
        if isinstance(each, OSError) and each.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return Reason((each.strerror or str(each)).lower(), "Check the address and the route.")
    return HANGS_UP if isinstance(error, (OSError, EOFError)) else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def no_tls(service: str) -> Reason:
    """The reason for a service that was spoken to in TLS and does not speak it."""
    remedy = f"Ask for no TLS, nor cacert and cert; or switch TLS on in {service}."
    return Reason("it does not speak TLS", remedy, final=True)


def _of_tls(error: ssl.SSLError, service: str, security: Security) -> Reason:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message
        if "mismatch" in text.lower():
            remedy = "Its certificate needs this name or address as subject alternative name."
        elif "expired" in text or "not yet valid" in text:
            remedy = "Renew it, or set the clock of this machine."
        else:
            whose = security.cacert or "the system's authorities"
            remedy = f"It was not signed by {whose}: --rdzv-conf cacert=FILE names the right authority."
        return Reason(f"TLS: its certificate is refused: {text.rstrip('.').lower()}", remedy, final=True)
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason:
        mine = f"this node's certificate {security.cert}" if security.cert else "this node has no certificate"
        return Reason(
            f"TLS: it refuses this node ({reason}); {mine}",
            "Give a client certificate that it trusts: --rdzv-conf cert=FILE,key=FILE.",
            final=True,
        )
    return no_tls(service) if any(each in reason for each in _PLAIN_TEXT) else Reason(f"TLS: {reason}")


def answer_of(endpoint: Endpoint, request: bytes, timeout: float, context: ssl.SSLContext | None) -> bytes:
    """How a service answers ``request``, by TLS if there is a ``context``: what it has said until it hangs up.

    At most about 4096 bytes; what it has said by ``timeout`` is enough. Blocks, for up to that many seconds in each
    step. Raises ``OSError``, an error of TLS among them.
    """
    with contextlib.ExitStack() as stack:
        connection: socket.socket = stack.enter_context(dial(endpoint.host, endpoint.port, timeout))
        if context is not None:
            connection.getpeername()  # of a connection that has ended, wrap_socket may leave the socket open
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=endpoint.host))
        connection.sendall(request)
        answer, deadline = b"", time.monotonic() + timeout
        with contextlib.suppress(TimeoutError, ConnectionError):  # what it has said by then is enough to recognise it
            while len(answer) < _ENOUGH and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                if not (part := connection.recv(_ENOUGH)):
                    break
                answer += part
        return answer


def unchecked_context() -> ssl.SSLContext:
    """For TLS with whoever answers: only to find out what that is, as it must be told nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
