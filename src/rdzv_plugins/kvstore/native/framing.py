"""Our own framing of the native store, on the client side: the proof of a token, greeting, frames, statistics.

See native/PROTOCOL.md for what is sent. With a token, each side proves that it knows it before anything else: decision
0054 has why that is enough.
"""

from __future__ import annotations

import contextlib
import enum
import json
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RdzvError, RunIdMismatch
from rdzv_plugins.kvstore.sockets.reach import dial, reason_of
from rdzv_plugins.kvstore.tcpstore.listener import Stranger, greet_store, look_if_silent, unknown
from rdzv_plugins.kvstore.tcpstore.wire import receive
from rdzv_plugins.runtime import SYSTEM, Runtime, gaierror
from rdzv_plugins.security.certificates import NodeCertificates
from rdzv_plugins.security.job_token import MOST_RUN_ID, JobToken

if TYPE_CHECKING:
    import socket


def parse_statistics(text: bytes) -> dict[str, Any]:
    """The statistics of a server or a proxy, including what proxies report in them. Raises ``ValueError``."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"{type(data).__name__} instead of an object")
    try:
        for keyspace in data.get("keyspaces", ()):
            for trunk in keyspace.get("trunks", ()):
                trunk["report"] = _parse_report(trunk["report"])
        for run in data.get("runs", ()):
            run["name"] = str(run["name"])
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"its keyspaces or runs cannot be read: {error}") from None
    return data


def _parse_report(text: str) -> dict[str, Any]:
    """What a proxy says about itself: empty if it has said nothing yet, or something it should not."""
    try:
        report = json.loads(text)
        return {**report, "children": [_parse_report(child) for child in report["children"]]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


CONTROL = "control"
"""The name of a server's first keyspace if that is the agents' control store of one job."""
NO_RUN = "(a control store, for no session)"
"""The only run for which such a server opens sessions; no real run has this id."""


def is_control_store(stats: Mapping[str, Any]) -> bool:
    """Whether these are the statistics of such a server."""
    return any(keyspace.get("name") == CONTROL for keyspace in stats.get("keyspaces", ()))


MAGIC = b"RDZA"
_FIRST = b"\xf8RDZV"
_VERSION = 1
_WHAT = b"rdzv-plugins proof of a token"
_NONCE = _PROOF = 32
_VERDICT = struct.Struct("<4sI")
_GO_ON, _NEEDED, _NONE_HERE, _REFUSED, _OTHER_VERSION, _NOT_OPENED, _TLS_NEEDED = range(7)
_CLIENT, _SERVER = 1, 2
_SAME_TOKEN = "Give all nodes of a job the same token: RDZV_TOKEN, RDZV_TOKEN_FILE or --rdzv-conf token_file=PATH."


class Purpose(enum.IntEnum):
    """What a connection is for: nothing else is served on it."""

    SESSION = 1
    TRUNK = 2
    STORE = 3
    STATUS = 4


def authenticate(
    connection: socket.socket,
    token: JobToken,
    purpose: Purpose,
    run_id: str = "",
    *,
    on_sent: Callable[[], None] = lambda: None,
    ahead: bytes = b"",
    runtime: Runtime = SYSTEM,
) -> None:
    """Prove that this node knows ``token``, and have the other side prove it, before anything else is sent.

    ``on_sent`` is called before waiting for the first answer. ``ahead`` is sent with this side's proof, to save a round
    trip: a greeting, which a stranger may hear just like the name of the run. Raises ``AccessRefused``,
    ``RunIdMismatch``, ``NotNative``, ``ConnectionError`` or ``TimeoutError`` (of the socket).
    """
    import hmac

    run = run_id.encode()
    if len(run) > MOST_RUN_ID:
        raise ValueError(f"a run id of {len(run)} bytes")
    mine = runtime.urandom(_NONCE)
    connection.sendall(_FIRST + struct.pack("<IB", _VERSION, purpose) + mine + struct.pack("<H", len(run)) + run)
    on_sent()
    theirs = _go_on(connection, purpose, run_id, _NONCE)

    def proof(key: bytes, side: int) -> bytes:
        bound = struct.pack("<IBB", _VERSION, side, purpose) + mine + theirs + struct.pack("<I", len(run)) + run
        return hmac.digest(key, _WHAT + bound, "sha256")

    connection.sendall(bytes([len(token.keys)]) + b"".join(proof(key, _CLIENT) for key in token.keys) + ahead)
    answer = _go_on(connection, purpose, run_id, 1 + _PROOF)
    which, told = answer[0], answer[1:]
    if which >= len(token.keys) or not hmac.compare_digest(told, proof(token.keys[which], _SERVER)):
        raise AccessRefused(
            f"what answers at {_where(connection)} has not proved that it knows this job's token",
            remedy="It is not a part of this job: check the endpoint. It was told the name of the run, and no more.",
        )


def refuse_if_told(connection: socket.socket, answer: bytes) -> None:
    """Raise ``AccessRefused`` if ``answer``, to a greeting without a token, says that a token or TLS is required."""
    if answer[: len(MAGIC)] == MAGIC:
        if _VERDICT.unpack(answer)[1] == _TLS_NEEDED:
            raise _without_tls(_where(connection))
        raise AccessRefused(
            f"the store at {_where(connection)} needs the job's token, but this process was given none",
            remedy=_SAME_TOKEN,
        )


def greet_guarded(connection: socket.socket, token: JobToken | None, run_id: str, runtime: Runtime = SYSTEM) -> str:
    """A ``Greeting`` for a store that requires ``token``, if there is one; also raises ``AccessRefused``."""
    if token is not None:
        try:
            authenticate(connection, token, Purpose.STORE, run_id, runtime=runtime)
        except TimeoutError:
            return "something accepts connections there, but does not answer as a store with this job's token"
        except RunIdMismatch:  # it has the port of a round that is over
            return "the store that accepts connections there is of another run"
        except ConnectionError:
            return "something accepts connections there and hangs up"
    return greet_store(connection)


def _go_on(connection: socket.socket, purpose: Purpose, run_id: str, size: int) -> bytes:
    """What the server sends with its verdict if the connection may go on: ``size`` bytes."""
    answer = receive(connection, _VERDICT.size)
    magic, verdict = _VERDICT.unpack(answer)
    if magic != MAGIC:
        raise NotNative(answer)
    if verdict == _GO_ON:
        return receive(connection, size)
    where = _where(connection)
    if verdict == _TLS_NEEDED:
        raise _without_tls(where)
    if verdict == _REFUSED:
        raise AccessRefused(
            f"the store at {where} does not accept this node's token",
            remedy=_SAME_TOKEN,
        )
    if verdict == _NOT_OPENED and run_id:
        raise RunIdMismatch(
            f"the token of this node does not open run {run_id!r} at {where}",
            remedy="Give all nodes of a job the same --rdzv-id, two jobs two endpoints, and at an rdzv serve "
            "a token whose pattern fits the run.",
        )
    if verdict == _NOT_OPENED:
        raise AccessRefused(
            f"the token of this process does not open the statistics of the store at {where}, which are of all runs",
            remedy="Ask with a token that opens all runs, or with --rdzv-backend and --rdzv-id of one.",
        )
    if verdict == _NONE_HERE and purpose is Purpose.STATUS:
        raise AccessRefused(
            f"the store at {where} needs no token, but this process was given one",
            remedy="If it is the right one, ask without a token: a node's proxy only checks which user asks.",
        )
    if verdict == _NONE_HERE:
        raise AccessRefused(
            f"the store at {where} has no token, but this node was given one: the job would be open to everybody",
            remedy=_SAME_TOKEN + " Or start this node without one.",
        )
    raise AccessRefused(
        f"the store at {where} speaks another version of the handshake (verdict {verdict})",
        remedy="Install the same version of rdzv-plugins on every node.",
    )


def _without_tls(where: str) -> AccessRefused:
    return AccessRefused(
        f"the store at {where} speaks TLS, but this process was given no certificates",
        remedy="Give all nodes of a job, and the commands that ask it, --rdzv-conf cacert=FILE,cert=FILE,key=FILE.",
    )


def _where(connection: socket.socket) -> str:
    with contextlib.suppress(OSError, ValueError, TypeError):
        host, port = connection.getpeername()[:2]
        return str(Endpoint(host, port))
    return "the other end"


VERSION = 1
DONE, REFUSED = 0, 1
"""Statuses of a reply; when refused, the payload is text for people."""

LENGTH = struct.Struct("<I")
HEAD = struct.Struct("<IB")
"""What follows the length: the number of the request, and its operation or the status of the reply."""

_MAGIC = b"RDZV"
_STATISTICS = 1


class NotNative(ConnectionError):
    """What answers speaks neither our framing nor the proof of a token; ``args[0]`` is what it said."""


class OtherVersion(ConnectionError):
    """What answers speaks another version of our framing, ``args[0]``."""


def hello(
    connection: socket.socket,
    ahead: bytes = b"",
    on_sent: Callable[[], None] = lambda: None,
    *,
    token: JobToken | None = None,
    purpose: Purpose = Purpose.SESSION,
    run_id: str = "",
    runtime: Runtime = SYSTEM,
) -> None:
    """Greet, and send ``ahead`` along: frames that need not wait for the answer.

    ``on_sent`` is called before the answer is waited for. With a ``token``, both sides first prove that they know it,
    for this ``purpose`` and of this run. Raises ``NotNative``, ``OtherVersion``, ``AccessRefused``, ``ConnectionError``
    or ``TimeoutError`` (of the socket).
    """
    greeting = b"\xf7" + _MAGIC + LENGTH.pack(VERSION) + ahead
    if token is None:
        connection.sendall(greeting)
        on_sent()
    else:
        authenticate(connection, token, purpose, run_id, on_sent=on_sent, ahead=greeting, runtime=runtime)
    answer = receive(connection, len(_MAGIC) + LENGTH.size)
    refuse_if_told(connection, answer)
    if not answer.startswith(_MAGIC):
        raise NotNative(answer)
    (version,) = LENGTH.unpack_from(answer, len(_MAGIC))
    if version != VERSION:
        raise OtherVersion(version)


def frame(number: int, operation: int, payload: bytes = b"") -> bytes:
    """One complete request. ``number`` comes back with its reply."""
    return LENGTH.pack(HEAD.size + len(payload)) + HEAD.pack(number, operation) + payload


def receive_reply(connection: socket.socket) -> tuple[int, bytes]:
    """Status and payload of the next reply. Raises ``ConnectionError`` or ``TimeoutError`` (of the socket)."""
    (size,) = LENGTH.unpack(receive(connection, LENGTH.size))
    if size < HEAD.size:
        raise ConnectionError(f"a frame of {size} bytes")
    _, status = HEAD.unpack(receive(connection, HEAD.size))
    return status, receive(connection, size - HEAD.size)


def ask_statistics(
    endpoint: Endpoint,
    timeout: float,
    *,
    stranger: Stranger = unknown,
    token: JobToken | None = None,
    tls: NodeCertificates | None = None,
    runtime: Runtime = SYSTEM,
) -> dict[str, Any]:
    """Ask for what ``StoreServer.stats()`` returns at ``endpoint``. ``timeout`` (seconds) applies to each step.

    ``stranger`` is asked when the listener does not answer as a native store; ``token`` and ``tls`` are the job's.
    Raises ``EndpointUnreachable``, of which ``AccessRefused`` is one kind, also when something other than a native
    store answers.
    """
    try:
        connection = dial(endpoint.host, endpoint.port, timeout, tls=tls, runtime=runtime)
    except gaierror as error:
        raise EndpointUnreachable(
            f"{endpoint} does not resolve: {error.strerror}", remedy="Check the name, or give an IP address."
        ) from None
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else reason_of(error)
        raise EndpointUnreachable(
            f"{endpoint} cannot be reached: {why}", remedy="Check address and port, and that the job still runs."
        ) from None
    with connection:
        try:
            torchs = _torchs_store(endpoint)
            hello(
                connection,
                # under TLS it has spoken TLS, as nobody does who could be named
                on_sent=lambda: look_if_silent(connection, stranger, torchs, runtime) if tls is None else None,
                token=token,
                purpose=Purpose.STATUS,
                runtime=runtime,
            )
            return request_statistics(connection)
        except ValueError as error:  # not JSON
            raise not_statistics(endpoint, str(error)) from None
        except OSError as error:
            what = "does not answer" if isinstance(error, TimeoutError) else "hangs up"
            raise EndpointUnreachable(
                f"something listens at {endpoint}, but {what} when it is asked as a native store",
                remedy="torch's own TCPStore has no statistics: start the job with --rdzv-conf store=parallel, or the "
                "store with rdzv serve.",
            ) from None


def _torchs_store(endpoint: Endpoint) -> EndpointUnreachable:
    return EndpointUnreachable(
        f"{endpoint} is a TCPStore of torch, which has no statistics",
        remedy="For a rendezvous there, give --rdzv-backend and --rdzv-id. A workers' store has statistics "
        "with --rdzv-conf store=parallel.",
    )


def not_statistics(endpoint: Endpoint, why: str) -> EndpointUnreachable:
    """The error to raise when an answer lacks something it must have."""
    return EndpointUnreachable(
        f"the store at {endpoint} did not answer with statistics: {why}",
        remedy="Is it of another version of rdzv-plugins? Ask it with the rdzv of that version.",
    )


def request_statistics(connection: socket.socket) -> dict[str, Any]:
    """Ask on a greeted connection. Raises ``OSError``, ``RdzvError`` if it is refused, or ``ValueError``."""
    connection.sendall(frame(1, _STATISTICS))
    status, payload = receive_reply(connection)
    if status != DONE:
        raise RdzvError(f"the store refuses: {payload.decode(errors='backslashreplace')}")
    return parse_statistics(payload)
