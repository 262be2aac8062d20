"""The store proxy of a node: its workers' requests go to the root over one connection, and fewer of them.

What it saves, and why no worker can see anything that the root's own clients could not, is in
docs/internals/proxy.md; the protocol of the trunk is in native/PROTOCOL.md.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdzv_plugins.certificates import NodeCertificates
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.native.framing import NotNative, OtherVersion, Purpose, hello, parse_statistics
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.kvstore.native.server import Admit, Renewing, log_pipe, native_part, version
from rdzv_plugins.kvstore.sockets.listening import Ports, bind_exactly
from rdzv_plugins.kvstore.sockets.reach import Interruption, reach
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import AF_UNIX, SOCK_STREAM, SYSTEM, Runtime

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_LOST = "lost: "
"""Begins a line of the native part that is meant for ``on_lost``, not for the log."""


class StoreProxy:
    """A proxy in this process, from construction until ``close()`` or the end of a ``with`` block.

    ``root`` is a native ``StoreServer``, or another proxy that is not a ``leaf``; ``name`` is what this one calls
    itself there. If the connection to the root breaks, it is made again within ``grace`` seconds, and no request is
    lost or done twice. After that, or at once if the root refuses, the root is lost: all connections of workers are
    closed, and ``on_lost`` is called once, with a sentence saying why, by a thread of this object's own. ``timeout``
    (seconds) is for the first connection, which ends at once when ``interruption`` comes. With ``leaf=False``, other
    proxies may connect to it as to a root. ``token`` is what root and proxy prove to each other that they know, for run
    ``run_id``; ``listen(admit="token")`` then demands the same of proxies, and workers are let in by ``"user"``. With
    ``tls`` the connection to the root is under TLS, and so is what ``listen(under_tls=True)`` accepts; problems with a
    certificate are reported when the root is lost.

    Thread-safe; blocking calls release the GIL, and the proxy's thread never runs Python. Raises
    ``EndpointUnreachable`` if the root cannot be reached, ``AccessRefused`` if it does not accept the token,
    ``MissingDependency`` if the native part is not built.
    """

    def __init__(
        self,
        root: Endpoint,
        *,
        name: str = "",
        leaf: bool = True,
        grace: float = 5.0,
        limits: StoreLimits | None = None,
        timeout: float = 15.0,
        on_lost: Callable[[str], None] | None = None,
        interruption: Interruption | None = None,
        token: JobToken | None = None,
        run_id: str = "",
        tls: NodeCertificates | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._runtime = runtime
        native = native_part(proves=token is not None, secures=tls is not None)
        fitting = tls.fitting() if tls is not None else None
        # under TLS the native part also speaks first: what was begun in Python could not be handed over
        greet = functools.partial(_greet, token, run_id, runtime) if tls is None else None
        connection = reach(root, timeout, "the store's root", greet, interruption=interruption, runtime=runtime)
        connection.settimeout(None)
        with log_pipe() as (reading, writing):
            self._native = native.Proxy(
                version=version(),
                log_fd=writing,
                limits=limits or StoreLimits(),
                trunk=connection.detach(),
                name=name or runtime.gethostname(),
                leaf=leaf,
                grace_ms=int(grace * 1000),
                tokens=token.accepted(run_id) if token is not None else (),
                keys=token.keys if token is not None else (),
                run=run_id,
                tls=fitting.texts if fitting is not None else None,
                host=root.host,
            )
        self.lost = ""
        """Why the root is lost; empty while it is not."""
        self._paths: list[str] = []
        renewing = None
        if tls is not None and fitting is not None:
            renewing = Renewing(tls, fitting.stamp, self._native.renew, runtime)
        self._stop = weakref.finalize(self, _close, self._native, self._paths, runtime, runtime.getpid(), renewing)
        # a thread of Python's own, so that the proxy's need not run Python; it ends when the proxy does
        runtime.Thread(target=_log, args=(reading, weakref.ref(self), on_lost), name="rdzv-proxy-log").start()

    def listen(
        self,
        host: str = "127.0.0.1",
        ports: Ports = PortRange(0, 0),
        *,
        admit: Admit = "anyone",
        under_tls: bool = False,
    ) -> int:
        """Listen on ``host``, on the first free of ``ports``; returns that port. ``admit`` says who may connect.

        ``under_tls``: for proxies of other machines, if this one was given certificates. Raises ``AddressInUse``.
        """
        return int(
            self._native.listen(bind_exactly(host, ports, "the store proxy", self._runtime).detach(), admit, under_tls)
        )

    def listen_unix(self, path: str, *, admit: Admit = "anyone") -> None:
        """Listen on a Unix socket, only for processes of this user (and of root, except with ``admit="user"``).

        ``@name`` is an abstract one; otherwise a file is made, with mode 0600, and removed by ``close()``. Raises
        ``AddressInUse``.
        """
        listener = self._runtime.socket(AF_UNIX, SOCK_STREAM)
        try:
            if path.startswith("@"):
                listener.bind("\0" + path[1:])
            else:
                os.fchmod(listener.fileno(), 0o600)  # as the file will have: at no moment may others connect
                listener.bind(path)
                self._paths.append(path)
        except OSError as error:
            listener.close()
            raise AddressInUse(
                f"the store proxy cannot listen on {path}: {(error.strerror or str(error)).lower()}",
                remedy="Choose another path (at most 107 bytes), in a directory that this user may write to.",
            ) from None
        self._native.listen(listener.detach(), admit)

    def stats(self) -> dict[str, Any]:
        """What the proxy does and has done; docs/reference/store-statistics.md explains every figure."""
        data = parse_statistics(self._native.statistics())
        data["proxy"]["lost"] = self.lost
        return data

    def close(self) -> None:
        """Close all connections of workers, and the one to the root. May be called more than once."""
        self._stop()

    def __enter__(self) -> StoreProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _greet(token: JobToken | None, run_id: str, runtime: Runtime, connection: socket.socket) -> str:
    try:
        hello(connection, token=token, purpose=Purpose.TRUNK, run_id=run_id, runtime=runtime)
    except NotNative:
        return "what accepts connections there is not a native store (torch's own cannot serve proxies)"
    except TimeoutError:
        return "it accepts connections, but does not answer as a native store (torch's own cannot serve proxies)"
    except OtherVersion as error:
        return f"it accepts, but speaks version {error.args[0]} of the framing"
    return ""


def _close(native: Any, paths: list[str], runtime: Runtime, process: int, renewing: Renewing | None) -> None:
    if renewing is not None:
        renewing.close()
    native.stop()
    for path in paths if runtime.getpid() == process else ():  # a forked child has no proxy
        with contextlib.suppress(OSError):
            Path(path).unlink()


def _log(reading: int, told: weakref.ref[StoreProxy], on_lost: Callable[[str], None] | None) -> None:
    with open(reading, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            text = line.rstrip("\n")
            if not text.startswith(_LOST):
                logger.warning("%s", text)
                continue
            reason = text.removeprefix(_LOST)
            if (proxy := told()) is not None:
                proxy.lost = reason
            logger.debug("the store's root is lost: %s", reason)
            if on_lost is not None:
                on_lost(reason)
