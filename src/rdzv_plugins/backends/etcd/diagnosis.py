"""Why a member that can be dialled cannot be used: examined with plain sockets and Python's TLS.

gRPC says "unavailable" for each of these reasons.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl

from rdzv_plugins.backends.etcd import parse_members
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kit.reasons import HANGS_UP, Reason, answer_of, network_reason, no_tls, unchecked_context
from rdzv_plugins.kit.security import Security
from rdzv_plugins.kvstore.sockets.reach import dial

_MOST = 1 << 20
"""How many bytes of a page are read."""
_FIRST_VERSION = 3
_SETTINGS = b"\x04"
"""The type of the first frame of an HTTP/2 server; it follows three bytes of length."""


SILENT = Reason("it accepts connections, but does not answer")
_NO_TLS = Reason(
    "it does not speak TLS", "Leave out https://, protocol=https, cacert and cert, or switch TLS on in etcd.", True
)


def diagnose(endpoint: Endpoint, security: Security, timeout: float) -> Reason | None:
    """What is wrong; None if this cannot tell. Takes up to a few times ``timeout`` seconds; never raises."""
    try:
        answer = _ask_version(endpoint, timeout, security.context() if security.tls else None)
    except ssl.SSLEOFError:  # it has hung up, as etcd without TLS does
        answers = b""
        with contextlib.suppress(OSError):
            answers = _ask_version(endpoint, timeout, None)
        return _NO_TLS if answers else Reason("it hangs up during the TLS handshake")
    except ssl.SSLError as error:  # with TLS 1.3 the server's verdict on our certificate comes late
        reason = network_reason(error, "etcd", security) or HANGS_UP
        return _NO_TLS if reason == no_tls("etcd") else reason
    except TimeoutError:
        return SILENT
    except OSError:
        answer = b""
    if not security.tls and _speaks_tls(endpoint, timeout):
        return Reason(
            "it speaks TLS",
            "Give https:// in the endpoint, and --rdzv-conf cacert=FILE if its authority is your own.",
            True,
        )
    return _of_answer(answer)


def recognise(request: Request, timeout: float) -> str:
    """See ``Backend.recognise``; applies to one of the members."""
    members, _ = parse_members(request.endpoint)
    version = version_at(members[0], timeout)
    return f"etcd {version}" if version else ""


def version_at(endpoint: Endpoint, timeout: float) -> str:
    """The version of the etcd that listens there, or "". Its certificate is not checked, as it is told nothing."""
    for context in (None, unchecked_context()):
        with contextlib.suppress(OSError):
            if version := _version(_ask_version(endpoint, timeout, context)):
                return version
    return ""


def page_of(endpoint: Endpoint, security: Security, path: str, timeout: float) -> tuple[str, bytes]:
    """The date that the member gives in its answer to an HTTP request, and the answer; empty if it gives none.

    Raises ``OSError`` (including TLS errors) and ``HTTPException``; each step may take ``timeout`` seconds.
    """
    connection = (
        http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=timeout, context=security.context())
        if security.tls
        else http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)
    )
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        found = answer.read(_MOST) if answer.status == http.HTTPStatus.OK else b""
        return answer.headers.get("Date", ""), found


def _version(answer: bytes) -> str:
    """The version from the answer to an HTTP request; empty if that does not come from etcd."""
    body = answer.partition(b"\r\n\r\n")[2]
    try:
        return str(json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["etcdserver"])
    except (ValueError, KeyError, TypeError):
        return ""


def _ask_version(endpoint: Endpoint, timeout: float, context: ssl.SSLContext | None) -> bytes:
    """Its answer to a request in HTTP, by TLS if there is a ``context``."""
    request = f"GET /version HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n"
    return answer_of(endpoint, request.encode(), timeout, context)


def _speaks_tls(endpoint: Endpoint, timeout: float) -> bool:
    try:
        with dial(endpoint.host, endpoint.port, timeout) as plain, unchecked_context().wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it has answered in TLS, for example to ask for our certificate
    except OSError:
        return False


def _of_answer(answer: bytes) -> Reason | None:
    """The reason shown by its answer to an HTTP request: etcd states its version."""
    head = answer.partition(b"\r\n\r\n")[0]
    strange = Reason("something other than etcd listens there", "Check host and port: etcd's is 2379 by default.", True)
    if not answer or answer[3:4] == _SETTINGS:  # only HTTP/2, as etcd can be configured: it may be starting
        return None
    if head.startswith(b"HTTP/") and head[9:10] == b"5":  # from a proxy that has no member to ask just now
        return Reason(f"it answers HTTP {head[9:12].decode(errors='replace')}")
    if not head.startswith(b"HTTP/"):
        return strange
    version = _version(answer)
    try:
        major = int(version.partition(".")[0])
    except ValueError:
        return strange
    if major < _FIRST_VERSION:
        return Reason(
            f"it is etcd {version}, which has only the v2 API",
            "Use etcd 3.4 or later: etcd 3.6 has no v2 API any more.",
            True,
        )
    return None
