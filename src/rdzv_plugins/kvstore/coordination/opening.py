"""Opens a session on a fresh connection: who is listening there, and whose run does it serve?"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from rdzv_plugins.endpoints import Endpoint, require_name
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RdzvError, RunIdMismatch
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.coordination import frames
from rdzv_plugins.kvstore.coordination.reactor import close_in_children
from rdzv_plugins.kvstore.native.framing import (
    DONE,
    VERSION,
    NotNative,
    OtherVersion,
    frame,
    hello,
    receive_reply,
    request_statistics,
)
from rdzv_plugins.kvstore.native.server import version
from rdzv_plugins.kvstore.native.statistics import NO_RUN
from rdzv_plugins.kvstore.tcpstore.whose import Stranger, is_torch_store, look_if_silent, unknown
from rdzv_plugins.plain_text import printable
from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_LEAST_TTL, _MOST_TTL = 0.1, 3600.0
_OUR_NUMBER = 1
_TOO_MANY = "too many sessions"
_FULL = "rdzv status shows whose they are; the limit is an option (--rdzv-conf) of who serves: rdzv serve, or a node."
_SAME_VERSION = "Install the same version of rdzv-plugins on every node, and where rdzv serve runs."
_VERSION_S, _LONGEST_VERSION = 1.0, 40


class Opening:
    """Opens a session of ``ttl`` seconds for run ``run_id``; the attributes are set once ``greet`` has returned "".

    ``named``: the run id is not a default one. ``stranger`` is asked when the listener does not answer as a native
    store, unless the connections are ``under_tls``; None: it was one before, and is not asked what it is by now, which
    takes some seconds. ``token`` is the job's, if it has one. Raises ``ValueError`` for an impossible ``ttl``.
    """

    opened: frames.Opened
    local_addr: str
    remote_addr: str
    asked_at: float

    def __init__(
        self,
        endpoint: Endpoint,
        run_id: str,
        ttl: float,
        *,
        named: bool = True,
        stranger: Stranger | None = unknown,
        token: JobToken | None = None,
        under_tls: bool = False,
        runtime: Runtime = SYSTEM,
    ) -> None:
        if not _LEAST_TTL <= ttl <= _MOST_TTL:
            raise ValueError(f"ttl={ttl} is not from {_LEAST_TTL} to {_MOST_TTL:g} seconds")
        self._endpoint, self._run_id, self._named, self._stranger = endpoint, run_id, named, stranger
        self._token, self._under_tls, self._runtime = token, under_tls, runtime
        self._request = frame(_OUR_NUMBER, frames.OPEN, frames.open_(round(ttl * 1000), run_id))

    def greet(self, connection: socket.socket) -> str:
        """A ``Greeting``. Raises ``EndpointUnreachable``, ``AccessRefused``, ``RunIdMismatch`` or ``RunIdMissing``."""
        close_in_children(connection, self._runtime)
        silent = functools.partial(self._silent, connection)
        # here, where an error of a connection that has just ended leads to another attempt
        self.local_addr = _without_mapping(connection.getsockname()[0])
        self.remote_addr = _without_mapping(connection.getpeername()[0])
        self.asked_at = self._runtime.now()
        try:
            hello(
                connection,
                ahead=self._request,
                on_sent=lambda: look_if_silent(connection, silent) if self._stranger is not None else None,
                token=self._token,
                run_id=self._run_id,
                runtime=self._runtime,
            )
            status, payload = receive_reply(connection)
        except NotNative as error:
            raise self._known() or self._not_native(f"it answers {error.args[0]!r}") from None
        except OtherVersion as error:
            raise EndpointUnreachable(
                f"the native store at {self._endpoint} speaks version {error.args[0]} of the framing, this node "
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

    def _silent(self, connection: socket.socket) -> EndpointUnreachable | None:
        """The error that says who is silent there, if that is known before the whole time-out has passed."""
        if self._under_tls:  # whoever could be named is asked in plain, and what is silent here has spoken TLS
            return None
        known = self._known()
        if known is None and is_torch_store(connection, self._runtime):
            return self._not_native("it answers as torch's TCPStore does")
        return known

    def _known(self) -> EndpointUnreachable | None:
        return self._stranger() if self._stranger is not None else None

    def _read(self, status: int, payload: bytes, connection: socket.socket) -> str:
        if status == frames.OTHER_RUN:
            served = payload.decode(errors="backslashreplace")
            if served == NO_RUN:
                raise self._known() or self._not_native("it is the control store of a job with another backend")
            raise RunIdMismatch(
                f"{self._endpoint} serves run {served!r}, and this node belongs to run {self._run_id!r}",
                remedy="Give all nodes of a job the same --rdzv-id, and two jobs two endpoints.",
            )
        if status == frames.FOREIGN_RUN:
            raise AccessRefused(
                f"run {self._run_id!r} at {self._endpoint} was opened with another token, and belongs to that",
                remedy="Choose another --rdzv-id, or give this node the token of that run.",
            )
        if status != DONE:
            why = payload.decode(errors="backslashreplace")
            full = why.startswith(_TOO_MANY)
            raise EndpointUnreachable(
                f"the native store at {self._endpoint} opens no session: {why}",
                remedy=_FULL if full else _SAME_VERSION,
            )
        try:
            self.opened = frames.decoded(frames.opened, payload)
        except ValueError as error:  # it has greeted as a native store, so it is one
            logger.debug("%s: %s", self._endpoint, error)
            raise EndpointUnreachable(
                f"the native store at {self._endpoint} is of {_version_at(connection)}, this node of rdzv-plugins "
                f"{version()}: it opens sessions in another way",
                remedy=_SAME_VERSION,
            ) from None
        if self.opened.any_run:
            require_name(str(self._endpoint), named=self._named)
        return ""

    def _not_native(self, why: str) -> EndpointUnreachable:
        return EndpointUnreachable(
            f"{self._endpoint} is not a native store of rdzv-plugins: it is torch's TCPStore or another program "
            f"({why})",
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
