"""Opening a session on a fresh connection: who is it that listens there, and whose run does it serve?"""

from __future__ import annotations

import socket

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, RunIdMismatch
from rdzv_plugins.kvstore import coordination_frames as frames
from rdzv_plugins.kvstore import wire
from rdzv_plugins.kvstore.framing import DONE, VERSION, NotNative, OtherVersion, frame, hello, receive_reply
from rdzv_plugins.kvstore.reach import dial
from rdzv_plugins.kvstore.reactor import close_in_children

_LEAST_TTL, _MOST_TTL = 0.1, 3600.0
_OUR_NUMBER = 1
_PROBE_S = 2.0
_SAME_VERSION = "Install the same version of rdzv-plugins on every node."


class Opening:
    """A session of ``ttl`` seconds for run ``run_id``; the attributes are there when ``greet`` has returned "".

    Raises ``ValueError`` for an impossible ``ttl``.
    """

    opened: frames.Opened
    local_addr: str
    remote_addr: str

    def __init__(self, endpoint: Endpoint, run_id: str, ttl: float) -> None:
        if not _LEAST_TTL <= ttl <= _MOST_TTL:
            raise ValueError(f"ttl={ttl} is not from {_LEAST_TTL} to {_MOST_TTL:g} seconds")
        self._endpoint, self._run_id = endpoint, run_id
        self._request = frame(_OUR_NUMBER, frames.OPEN, frames.open_(round(ttl * 1000), run_id))

    def greet(self, connection: socket.socket) -> str:
        """A ``Greeting``. Raises ``EndpointUnreachable`` or ``RunIdMismatch``."""
        close_in_children(connection)
        # here, where an error of a connection that has just ended leads to another attempt
        self.local_addr = _without_mapping(connection.getsockname()[0])
        self.remote_addr = _without_mapping(connection.getpeername()[0])
        try:
            hello(connection, ahead=self._request)
            status, payload = receive_reply(connection)
        except NotNative as error:
            raise self._not_native(f"it answers {error.args[0]!r}") from None
        except OtherVersion as error:
            raise EndpointUnreachable(
                f"the native store at {self._endpoint} speaks version {error.args[0]} of the framing, this node "
                f"version {VERSION}",
                remedy=_SAME_VERSION,
            ) from None
        except TimeoutError:
            if _is_torch_store(connection):
                raise self._not_native("it answers as torch's TCPStore does") from None
            return "something accepts connections there, but does not answer as a native store of rdzv-plugins"
        except ConnectionError:  # a native store that is just ending, or has no descriptors left, does that too
            return (
                "something accepts connections there and hangs up: is it a native store of rdzv-plugins, or torch's "
                "TCPStore or another program?"
            )
        return self._read(status, payload)

    def _read(self, status: int, payload: bytes) -> str:
        if status == frames.OTHER_RUN:
            served = payload.decode(errors="backslashreplace")
            raise RunIdMismatch(
                f"{self._endpoint} serves run {served!r}, and this node belongs to run {self._run_id!r}",
                remedy="Give all nodes of a job the same --rdzv-id, and two jobs two endpoints.",
            )
        if status != DONE:
            raise EndpointUnreachable(
                f"the native store at {self._endpoint} opens no session: {payload.decode(errors='backslashreplace')}",
                remedy=_SAME_VERSION,
            )
        try:
            self.opened = frames.decoded(frames.opened, payload)
        except ValueError as error:
            raise self._not_native(f"its answer is none: {error}") from None
        return ""

    def _not_native(self, why: str) -> EndpointUnreachable:
        return EndpointUnreachable(
            f"{self._endpoint} is not a native store of rdzv-plugins: it is torch's TCPStore or another program "
            f"({why})",
            remedy="Do all nodes use the same --rdzv-backend? Else another program has that port: choose another one, "
            "the same on every node.",
        )


def _is_torch_store(connection: socket.socket) -> bool:
    """Whether the other side greets torch's clients, and still leaves ``connection`` without an answer.

    torch's server takes our greeting for the beginning of something, and waits. A native store that was only
    slow for a while answers torch's greeting, too, but then ours as well.
    """
    patience = min(_PROBE_S, connection.gettimeout() or _PROBE_S)
    try:
        host, port = connection.getpeername()[:2]
        with dial(host, port, patience) as probe:
            wire.greet(probe)
    except OSError:
        return False
    connection.settimeout(patience)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return True
    except OSError:
        return False


def _without_mapping(address: str) -> str:
    return address.removeprefix("::ffff:") if "." in address else address
