"""A client's side of the handshake with a server that requires the job's token: each proves that it knows it.

See native/PROTOCOL.md for what is sent and why that is enough, and decision 0054 for what was chosen.
"""

from __future__ import annotations

import contextlib
import enum
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, RunIdMismatch
from rdzv_plugins.job_token import MOST_RUN_ID, JobToken
from rdzv_plugins.kvstore.tcpstore.greeting import greet_store
from rdzv_plugins.kvstore.tcpstore.wire import receive
from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import socket

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


class NotProving(ConnectionError):
    """What answers does not speak this protocol; ``args[0]`` is what it said."""


def prove(
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
    ``RunIdMismatch``, ``NotProving``, ``ConnectionError`` or ``TimeoutError`` (of the socket).
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
            f"the store at {_where(connection)} needs the job's token, and this process was given none",
            remedy=_SAME_TOKEN,
        )


def greet_guarded(connection: socket.socket, token: JobToken | None, run_id: str, runtime: Runtime = SYSTEM) -> str:
    """A ``Greeting`` for a store that requires ``token``, if there is one; also raises ``AccessRefused``."""
    if token is not None:
        try:
            prove(connection, token, Purpose.STORE, run_id, runtime=runtime)
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
        raise NotProving(answer)
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
            f"the store at {where} asks for no token, and this process was given one",
            remedy="If it is the one that is meant, ask it without: a node's proxy asks only whose the process is.",
        )
    if verdict == _NONE_HERE:
        raise AccessRefused(
            f"the store at {where} knows no token, and this node was given one: it would be open to everybody",
            remedy=_SAME_TOKEN + " Or start this node without one.",
        )
    raise AccessRefused(
        f"the store at {where} speaks another version of the handshake (verdict {verdict})",
        remedy="Install the same version of rdzv-plugins on every node.",
    )


def _without_tls(where: str) -> AccessRefused:
    return AccessRefused(
        f"the store at {where} speaks TLS, and this process was given no certificates",
        remedy="Give all nodes of a job, and the commands that ask it, --rdzv-conf cacert=FILE,cert=FILE,key=FILE.",
    )


def _where(connection: socket.socket) -> str:
    with contextlib.suppress(OSError, ValueError, TypeError):
        host, port = connection.getpeername()[:2]
        return str(Endpoint(host, port))
    return "the other end"
