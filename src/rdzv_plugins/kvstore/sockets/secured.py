"""A client's end of TLS 1.3, as a socket like any other; imported only if TLS is asked for.

A problem with a certificate, the server's or this node's, becomes a sentence that says which side has to change what.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused
from rdzv_plugins.kvstore.sockets.reach import Cancelled, CancelToken
from rdzv_plugins.security.certificates import NodeCertificates

_EXPIRED, _NOT_YET_VALID, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64
_OF_AUTHORITIES = frozenset((2, 18, 19, 20, 21))
"""Results of X509_verify_cert for an issuer that is unknown or not trusted."""
_HERE = "Give this node's --rdzv-conf"
_ALERTS = {
    "CERTIFICATE_REQUIRED": ("needs a certificate of this node", f"{_HERE} cert=FILE and key=FILE."),
    "CERTIFICATE_EXPIRED": (
        "says that this node's certificate has expired",
        f"{_HERE} cert a new one, or set the clock of the other machine.",
    ),
    "UNKNOWN_CA": (
        "does not know the authority that signed this node's certificate",
        f"{_HERE} cert one that is signed by an authority in the cacert there.",
    ),
    "PROTOCOL_VERSION": (
        "does not speak TLS 1.3",
        "Install the same version of rdzv-plugins, and OpenSSL 1.1.1 or later.",
    ),
    "CERTIFICATE": ("does not accept this node's certificate", "The output of that side says why."),
    "ACCESS_DENIED": ("does not accept this node's certificate", "The output of that side says why."),
}
"""Part of the name of an alert that the other side has sent, mapped to what it means and what to do."""
_NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"))


class SecuredSocket(ssl.SSLSocket):
    """A socket whose bytes are under TLS: it blocks, times out and breaks like a plain one.

    When non-blocking, one thread may read while another writes. Until the first byte from the other side, a problem
    with this node's certificate is raised as ``AccessRefused``; after that, a break is a ``ConnectionError``.
    """

    _where: str = ""
    _heard: bool = False
    _ahead: bytes = b""
    _turn: threading.RLock

    def recv(self, size: int = 1024, flags: int = 0) -> bytes:
        if not self._where:  # wrap_socket asks, of a connection that has ended already: the handshake will say so
            return b""
        if not self._ahead:
            data = self._read(size)
            if not flags & socket.MSG_PEEK:
                return data
            self._ahead = data
        data = self._ahead[:size]
        if not flags & socket.MSG_PEEK:
            self._ahead = self._ahead[size:]
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            with self._alone():
                return super().send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._broken(error) from None
        except (BrokenPipeError, ConnectionResetError):
            if not self._heard:  # it may have said why
                self._read(1)
            raise

    def shutdown(self, how: int) -> None:
        """Shut down the connection; what is under TLS stays so."""
        socket.socket.shutdown(self, how)

    def _read(self, size: int) -> bytes:
        try:
            with self._alone():
                data = super().recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._broken(error) from None
        self._heard = self._heard or bool(data)
        return data

    def _alone(self) -> contextlib.AbstractContextManager[object]:
        # a blocking socket has one thread; otherwise two could be inside OpenSSL at once
        return self._turn if self.gettimeout() == 0 else contextlib.nullcontext()

    def _broken(self, error: ssl.SSLError) -> Exception:
        if not self._heard and (refused := _alert(error, self._where)) is not None:
            return refused
        return ConnectionError(f"TLS: {_text(error)}: the bytes on the way were changed, or the other side gave up")


def secure(
    connection: socket.socket, certificates: NodeCertificates, endpoint: Endpoint, interruption: CancelToken
) -> SecuredSocket:
    """TLS on a fresh ``connection`` to ``endpoint``, within its time-out; takes over the socket.

    Raises ``AccessRefused`` when trying again is pointless because a certificate is not accepted or there is no TLS;
    otherwise ``OSError``, including ``Cancelled``. In either case the socket is closed.
    """
    context = certificates.context()
    context.sslsocket_class = SecuredSocket
    try:
        # data sent right after the handshake would wait for the acknowledgement of its last flight, which has no
        # answer: 40 ms
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made: Any = context.wrap_socket(connection, server_hostname=endpoint.host, do_handshake_on_connect=False)
    except OSError as error:
        raise ConnectionError(f"it accepts connections, and hangs up: {error.strerror or error}") from None
    made._where, made._turn = str(endpoint), threading.RLock()
    secured: SecuredSocket = made
    with contextlib.ExitStack() as unless_kept:
        unless_kept.enter_context(secured)
        try:
            with interruption.over(secured):
                secured.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise _not_accepted(error, endpoint) from None
        except Cancelled:
            raise
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
            raise ConnectionError(
                "something accepts connections there and hangs up instead of speaking TLS: is it a store that has cert "
                "and key, too?"
            ) from None
        except ssl.SSLError as error:
            raise _alert(error, str(endpoint)) or _no_tls(error, endpoint) from None
        except TimeoutError:
            raise ConnectionError("something accepts connections there, but does not go on with TLS") from None
        except OSError as error:  # that it is not connected any more
            raise ConnectionError(f"it accepts connections, and hangs up: {error.strerror or error}") from None
        unless_kept.pop_all()
        return secured


def _not_accepted(error: ssl.SSLCertVerificationError, endpoint: Endpoint) -> AccessRefused:
    code = error.verify_code
    if code == _EXPIRED:
        why, remedy = "has expired", "Renew it there, or set the clock of this machine."
    elif code == _NOT_YET_VALID:
        why, remedy = "is not valid yet", "The clock of this machine, or of the one that has made it, is wrong."
    elif code in (_OTHER_HOST, _OTHER_ADDRESS):
        why = f"is not one for {endpoint.host}"
        remedy = f"Make one there that has {endpoint.host} as subjectAltName, beside the other names of that machine."
    elif code in _OF_AUTHORITIES:
        why = "was signed by an authority that this node does not know"
        remedy = "Give this node, as cacert, the authority that has signed it, or that side one that is signed by it."
    else:
        why, remedy = f"is not accepted ({error.verify_message})", "Make another one there."
    return AccessRefused(f"the certificate of what answers at {endpoint} {why}", remedy=remedy)


def _alert(error: ssl.SSLError, where: str) -> AccessRefused | None:
    reason = error.reason or ""
    if "ALERT" not in reason:
        return None
    for name, (what, remedy) in _ALERTS.items():
        if name in reason:
            return AccessRefused(f"what answers at {where} {what}", remedy=remedy)
    return None


def _no_tls(error: ssl.SSLError, endpoint: Endpoint) -> AccessRefused:
    if (error.reason or "") in _NO_TLS:
        return AccessRefused(
            f"what answers at {endpoint} does not speak TLS, but this node was given certificates",
            remedy="Give all nodes of a job, and an rdzv serve, cacert, cert and key; or none of them.",
        )
    return AccessRefused(
        f"TLS with what answers at {endpoint} has failed: {_text(error)}",
        remedy="It may be another program, or the bytes are changed on the way.",
    )


def _text(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
