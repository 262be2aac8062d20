"""The native store server, which torch's own TCPStore clients use unchanged, and the store proxy of a node.

The server runs several threads. Through the proxy, the requests of a node's workers go to the root over one connection,
and fewer of them: what that saves, and why no worker can see anything that the root's own clients could not, is in
docs/internals/proxy.md. The protocol is in native/PROTOCOL.md; who owns what is in native/THREADS.md. Linux only; if
the native part was not built, both raise ``MissingDependency`` with the remedy.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AddressInUse, MissingDependency, UsageError
from rdzv_plugins.installed import version_of
from rdzv_plugins.kvstore.native.framing import NotNative, OtherVersion, Purpose, hello, parse_statistics
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.kvstore.sockets.listening import Ports, bind_exactly
from rdzv_plugins.kvstore.sockets.reach import CancelToken, reach
from rdzv_plugins.options import PortRange
from rdzv_plugins.runtime import AF_UNIX, SOCK_STREAM, SYSTEM, Runtime
from rdzv_plugins.security.certificates import CertificateTexts, NodeCertificates
from rdzv_plugins.security.job_token import AcceptedToken, JobToken

if TYPE_CHECKING:
    import socket

logger = logging.getLogger(__name__)

_Made = TypeVar("_Made", bound="_NativeObject")

_LOOK_S = 1.0
"""Seconds between two looks at the files."""
_LOST = "lost: "
"""Begins a line of the native part that is meant for ``on_lost``, not for the log."""


class CertificateReloader:
    """A thread that renews the certificates of a server or proxy when their files have changed. Thread-safe.

    It looks from construction until ``close``; existing connections stay.
    """

    def __init__(
        self,
        certificates: NodeCertificates,
        seen: object,
        renew: Callable[[CertificateTexts], object],
        runtime: Runtime,
    ) -> None:
        """``renew`` is called on that thread with the files' contents. It raises ``ValueError`` for what does not fit.

        ``seen`` is the stamp of those that the server has begun with: they may have been replaced since.
        """
        self._certificates, self._renew = certificates, renew
        self._seen = seen
        self._lock = runtime.Lock()
        self._closed = runtime.Event()
        runtime.Thread(target=self._run, name="rdzv-certificates").start()

    def look(self, *, anyway: bool = False) -> None:
        """Read the files now if they have changed, or regardless with ``anyway``.

        Problems with them are logged, and the old certificates stay.
        """
        with self._lock:
            seen = self._certificates.stamp()
            if seen == self._seen and not anyway:
                return
            self._seen = seen
            try:
                self._renew(self._certificates.texts())
            except UsageError as error:
                logger.warning("%s; the certificates stay as they were", error)
            except ValueError as error:
                logger.warning("--rdzv-conf: %s; the certificates stay as they were", error)
            else:
                logger.warning("%s was read again: new connections have that certificate", self._certificates.cert)

    def close(self) -> None:
        """Stop looking. May be repeated; waits for nothing."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_S):
            try:
                self.look()
            except Exception:  # it looks again: a thread that has ended would leave the certificates to expire
                logger.exception("%s could not be read again", self._certificates.cert)


MOST_THREADS = 64
LEAST_PAUSE = 0.1  # seconds

Admit = Literal["anyone", "user", "token"]
"""Who may connect: ``user``, only this user's processes on this machine; ``token``, whoever proves they know one."""


class Keyspace:
    """One store of a server: keys of its own, on a port of its own. Thread-safe."""

    def __init__(self, native: Any, name: str, id_: int, port: int, runtime: Runtime) -> None:
        self._runtime = runtime
        self._native = native
        self._id = id_
        self.name = name
        self.port = port

    def wipe(self) -> None:
        """Forget all keys and queues. Connections stay, and so do waiting clients. Raises ``ValueError`` when closed.

        Proxies are told to forget what they hold, which takes a moment.
        """
        try:
            self._native.wipe_keyspace(self._id)
        except IndexError:
            raise ValueError(f"keyspace {self.name!r} is closed") from None

    def pause_after(self, seconds: float, on_pause: Callable[[int], None]) -> None:
        """Stop serving once this process has stood still for ``seconds``, until ``resume`` or ``close``.

        This is for stores whose clients others may have given up in the meantime: a process that was stopped, or whose
        machine was suspended or swapped, would otherwise answer them before anything else is asked. While it pauses,
        nothing is read, answered or accepted, no wait is released, and all connections stay open. Every event loop
        decides this before it serves anybody; a single slow request is no reason. Other keyspaces of the server go on.

        ``on_pause`` is called with the number of the pause (1, 2, ...), by a thread of the keyspace's own, and may
        block; it is called again, with a higher number, when the process stands still another time, paused or not. An
        exception from it is logged, and the keyspace stays paused. Choose ``seconds`` (at least 0.1) so short that
        nobody can have been given up within them: an unnecessary pause lasts only until ``resume``. What was being sent
        at the very moment of the stop is not covered. Call once for each keyspace. Raises ``ValueError`` when it is
        closed, or pauses already.
        """
        if not seconds >= LEAST_PAUSE:
            raise ValueError(f"keyspace {self.name!r}: a pause after {seconds} s (at least {LEAST_PAUSE} s)")
        try:
            event = self._native.pause_after(self._id, int(seconds * 1000))
        except IndexError:
            raise ValueError(f"keyspace {self.name!r} is closed") from None
        watching = self._runtime.Thread(target=_watch_pauses, args=(self, event, on_pause), name="rdzv-store-pause")
        watching.start()

    def resume(self, pause: int) -> bool:
        """Serve again after the pause of that number. Thread-safe.

        Returns False if it does not, because the process has stood still again since (``on_pause`` reports that) or
        because it is closed.
        """
        try:
            return bool(self._native.resume(self._id, pause))
        except IndexError:
            return False

    def close(self) -> None:
        """Close its connections, forget its keys and free its port; the other keyspaces are not affected.

        Blocks (without the GIL) until that is done. Closing it again does nothing.
        """
        try:
            self._native.close_keyspace(self._id)
        except IndexError:  # closed already
            pass


class _NativeObject:
    """A server or a proxy of the native part, its log and its certificates, until ``close()``. A context manager."""

    def __init__(self, *, proves: bool, tls: NodeCertificates | None, runtime: Runtime) -> None:
        self._runtime, self._tls = runtime, tls
        self._part = native_part(proves=proves, secures=tls is not None)
        self._fitting = tls.fitting() if tls is not None else None
        self._renewing: CertificateReloader | None = None

    def _begin(
        self,
        kind: str,
        limits: StoreLimits | None,
        log: Callable[[str], object],
        paths: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """Make the object, of class ``kind``. ``log`` gets each line that it says; ``paths`` are removed at the end.

        Raises ``UsageError`` for what the native part says about certificates.
        """
        runtime, fitting = self._runtime, self._fitting
        reading, writing = os.pipe()  # the native part owns the writing end
        try:
            self._native = getattr(self._part, kind)(
                version=version(),
                log_fd=writing,
                limits=limits or StoreLimits(),
                tls=fitting.texts if fitting is not None else None,
                **settings,
            )
        except BaseException as error:
            os.close(reading)
            if isinstance(error, ValueError):
                remedy = "The files have to be PEM, and key that of cert."
                raise UsageError(f"--rdzv-conf: {error}", remedy=remedy) from None
            raise
        if self._tls is not None and fitting is not None:
            self._renewing = CertificateReloader(self._tls, fitting.stamp, self._native.renew, runtime)
        self._stop = weakref.finalize(self, _stop, self._native, self._renewing, paths, runtime, runtime.getpid())
        # a thread of Python's own, so that those of the object need not run Python; it ends when the object does
        name = "rdzv-store-log" if kind == "Server" else "rdzv-proxy-log"
        runtime.Thread(target=_log, args=(reading, log), name=name).start()

    def stats(self) -> dict[str, Any]:
        """What it does and has done; docs/reference/store-statistics.md explains every figure.

        Times are in seconds, sizes in bytes, counts since the start. It takes one lock after the other, each for a
        short time, so the figures are not of a single instant.
        """
        return parse_statistics(self._native.statistics())

    def close(self) -> None:
        """Close all connections and end the threads. May be called more than once."""
        self._stop()

    def __enter__(self: _Made) -> _Made:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreServer(_NativeObject):
    """A store server in this process, from construction until ``close()`` or the end of a ``with`` block.

    ``host`` is a name or an address of this machine to listen on; ``""`` means all interfaces, IPv4 and IPv6,
    ``"0.0.0.0"`` those of IPv4, ``"::"`` those of IPv6. ``port`` 0 means any free one. With ``listen_fd``, the
    descriptor of a bound TCP socket, both are ignored and the server owns the descriptor from here on. ``threads`` is
    the number of event loops; 0 means half of the processors, at most 8; more than 64 are refused. ``name`` is that of
    the first keyspace. ``run`` is the id of the only run that sessions may be opened for; ``""`` means any, kept apart.
    ``purpose`` is what metrics call the server. With ``tokens``, nothing is served on a connection before one of them
    was proved; ``admit="user"`` is for stores of one machine. With ``tls``, only TLS 1.3 is spoken; its files are read
    again when they change.

    Thread-safe; blocking calls release the GIL, and no loop thread runs Python. Clients that were closed for exceeding
    ``limits`` are logged as warnings, at most ten a second. A forked child has no server: the threads stay in the
    parent.

    Raises ``AddressInUse``, ``UsageError`` for certificates that do not fit, or ``MissingDependency`` if the native
    part is not built or OpenSSL is missing.
    """

    def __init__(
        self,
        host: str = "",
        port: int = 0,
        *,
        threads: int = 0,
        limits: StoreLimits | None = None,
        listen_fd: int | None = None,
        name: str = "default",
        run: str = "",
        purpose: str = "",
        tokens: Sequence[AcceptedToken] = (),
        admit: Admit = "anyone",
        tls: NodeCertificates | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        if not 0 <= threads <= MOST_THREADS:
            raise ValueError(f"StoreServer: threads={threads} is not from 0 to {MOST_THREADS}")
        super().__init__(proves=bool(tokens), tls=tls, runtime=runtime)
        self._admit: Admit = "token" if tokens else admit
        listener = self._listen(host, port, listen_fd, name)
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(listener.close)
            self._begin("Server", limits, _warn, threads=threads, run=run, tokens=tokens)
            unless_made.pop_all()
        self._host = host
        self.first = self._open(name, listener)
        """The keyspace that the server was created with, and its port."""
        self.port = self.first.port
        self.threads = int(self._native.threads)
        """How many event loops there are."""
        self.purpose = purpose or name
        self._runtime.single(Servers).add(self)

    def open_keyspace(
        self, name: str, host: str | None = None, port: int = 0, *, listen_fd: int | None = None
    ) -> Keyspace:
        """Open another store with its own keys and port. ``host`` None means that of the server.

        Raises ``AddressInUse``, or ``ValueError`` if there is one of that name or the server is closed.
        """
        return self._open(name, self._listen(self._host if host is None else host, port, listen_fd, name))

    def accept_tokens(self, tokens: Sequence[AcceptedToken]) -> None:
        """Let in whoever proves one of these from now on; existing connections stay.

        For a server that was given some.
        """
        self._native.accept_tokens(tokens)

    def read_certificates(self) -> None:
        """Read the files of ``tls`` again, whether they look changed or not; existing connections stay."""
        if self._renewing is not None:
            self._renewing.look(anyway=True)

    def close(self) -> None:
        """Close all keyspaces and connections and end the threads. May be called more than once."""
        super().close()
        self._runtime.single(Servers).remove(self)

    def _listen(self, host: str, port: int, listen_fd: int | None, name: str) -> socket.socket:
        if listen_fd is None:
            what = "a store" if name == "default" else f"keyspace {name!r}"
            return bind_exactly(host, PortRange(port, port), what, self._runtime)
        try:
            return self._runtime.socket(fileno=listen_fd)
        except OSError as error:
            raise AddressInUse(f"listen_fd={listen_fd} cannot be used as a socket: {error.strerror}") from None

    def _open(self, name: str, listener: socket.socket) -> Keyspace:
        id_, port = self._native.open_keyspace(name, listener.detach(), self._admit, self._tls is not None)
        return Keyspace(self._native, name, id_, port, self._runtime)


class Servers:
    """The servers of a process that were not closed. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.Lock()
        self._all: list[weakref.ref[StoreServer]] = []

    def add(self, server: StoreServer) -> None:
        with self._lock:
            self._all.append(weakref.ref(server))

    def remove(self, server: StoreServer) -> None:
        with self._lock:
            self._all = [each for each in self._all if each() not in (None, server)]

    def here(self) -> list[StoreServer]:
        with self._lock:
            return [server for each in self._all if (server := each()) is not None]


def servers_here(runtime: Runtime = SYSTEM) -> list[StoreServer]:
    """The servers of this process that were not closed, for whatever reports what they do. Thread-safe."""
    return runtime.single(Servers).here()


def _watch_pauses(keyspace: Keyspace, event: int, on_pause: Callable[[int], None]) -> None:
    """Report the pauses until the keyspace is closed. Owns ``event``."""
    told = 0
    try:
        while True:
            os.read(event, 8)
            try:
                number = int(keyspace._native.pauses(keyspace._id))
            except IndexError:  # closed
                return
            if number > told:
                told = number
                try:
                    on_pause(number)
                except Exception:
                    logger.exception("keyspace %r stays paused: what was to be done about it has failed", keyspace.name)
    finally:
        os.close(event)


class StoreProxy(_NativeObject):
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
        interruption: CancelToken | None = None,
        token: JobToken | None = None,
        run_id: str = "",
        tls: NodeCertificates | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        super().__init__(proves=token is not None, tls=tls, runtime=runtime)
        # under TLS the native part also speaks first: what was begun in Python could not be handed over
        greet = functools.partial(_greet, token, run_id, runtime) if tls is None else None
        connection = reach(root, timeout, "the store's root", greet, interruption=interruption, runtime=runtime)
        connection.settimeout(None)
        self.lost = ""
        """Why the root is lost; empty while it is not."""
        self._paths: list[str] = []
        self._begin(
            "Proxy",
            limits,
            functools.partial(_warn_or_tell, weakref.ref(self), on_lost),
            self._paths,
            trunk=connection.detach(),
            name=name or runtime.gethostname(),
            leaf=leaf,
            grace_ms=int(grace * 1000),
            tokens=token.accepted(run_id) if token is not None else (),
            keys=token.keys if token is not None else (),
            run=run_id,
            host=root.host,
        )

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
        data = super().stats()
        data["proxy"]["lost"] = self.lost
        return data


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


def _stop(
    native: Any, renewing: CertificateReloader | None, paths: Sequence[str], runtime: Runtime, process: int
) -> None:
    if renewing is not None:
        renewing.close()
    native.stop()
    for path in paths if runtime.getpid() == process else ():  # a forked child has no proxy
        with contextlib.suppress(OSError):
            os.unlink(path)


def _log(reading: int, log: Callable[[str], object]) -> None:
    with open(reading, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            log(line.rstrip("\n"))


def _warn(line: str) -> None:
    logger.warning("%s", line)


def _warn_or_tell(told: weakref.ref[StoreProxy], on_lost: Callable[[str], None] | None, line: str) -> None:
    if not line.startswith(_LOST):
        _warn(line)
        return
    reason = line.removeprefix(_LOST)
    if (proxy := told()) is not None:
        proxy.lost = reason
    logger.debug("the store's root is lost: %s", reason)
    if on_lost is not None:
        on_lost(reason)


def native_part(*, proves: bool = False, secures: bool = False) -> Any:
    """The extension module. ``proves``: with what token handshakes need; ``secures``: with TLS.

    Raises ``MissingDependency`` with the reason if that is not available.
    """
    try:
        from rdzv_plugins.kvstore import _native
    except ImportError as error:
        raise MissingDependency(
            f"the native store is not part of this installation of rdzv-plugins: {error}",
            remedy="It needs Linux, and a C++20 compiler when rdzv-plugins is installed: apt-get install g++ (or the "
            "like), then RDZV_REQUIRE_NATIVE=1 pip install --force-reinstall --no-deps --no-cache-dir "
            "--no-binary rdzv-plugins rdzv-plugins. What can be used without it: rdzv backends.",
        ) from error
    try:
        if proves:
            _native.load_crypto(_linked_with_openssl("_hashlib"))
        if secures:
            _native.load_tls(_linked_with_openssl("_ssl"))
    except RuntimeError as error:
        raise MissingDependency(
            f"{'TLS' if secures else 'a token'} cannot be used: {error}",
            remedy="Install OpenSSL 3 (apt-get install libssl3, or the like): Python's hashlib and ssl use it, too.",
        ) from None
    return _native


def _linked_with_openssl(module: str) -> str:
    """The file of the module through which this Python uses OpenSSL; empty if OpenSSL is a part of Python itself."""
    try:
        return getattr(importlib.import_module(module), "__file__", None) or ""
    except ImportError:
        return ""


@functools.cache
def version() -> str:
    """The version of this installation."""
    return version_of("rdzv-plugins") or "unknown"  # a checkout that is not installed
