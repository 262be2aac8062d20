"""Certificates from files, for TLS between nodes and with services: who trusts whom. Changed files are read again.

Files are PEM. What is wrong with one is reported before anything starts, by ``UsageError``. Everything here may be
called from any thread.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.options import option
from rdzv_plugins.runtime import SYSTEM, Runtime

if TYPE_CHECKING:
    import ssl  # slow to import: only for those that use TLS

logger = logging.getLogger(__name__)

OPTIONS = ("cacert", "cert", "key")


@dataclass(frozen=True)
class NodeTlsOptions:
    """Keys of --rdzv-conf for TLS between the nodes of a job, all of which serve others sooner or later."""

    cacert: str | None = option(
        None,
        help="File with the CA certificates that nodes trust; turns on TLS between nodes. Unset: the system's, "
        "and clients need no certificate.",
    )
    cert: str | None = option(
        None, help="File with this node's certificate, for its names and addresses; turns on TLS, and needs key."
    )
    key: str | None = option(None, help="File with the private key of cert.")


class CertificateTexts(NamedTuple):
    """The contents of a node's files, as the native part takes them; empty where there is none."""

    cacert: bytes
    cert: bytes
    key: bytes


class Fitting(NamedTuple):
    """The contents of a node's files, all of one state of them, and the contexts made from these."""

    stamp: tuple[object, ...]
    texts: CertificateTexts
    checking: ssl.SSLContext
    """Checks that a server's certificate is for the host that was dialled."""
    not_checking: ssl.SSLContext


class NodeCertificates(Struct, frozen=True):
    """The files by which a node proves who it is and recognises the others."""

    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    checks_host: bool = True
    """Whether a server's certificate has to match the host that was dialled; not needed within one process."""

    @classmethod
    def given(cls, option_of: Callable[[str], str | None]) -> NodeCertificates | None:
        """The files that ``option_of`` returns for the options' names; None if there are none. Reads no file."""
        cacert, cert, key = map(option_of, OPTIONS)
        return None if cacert is None and cert is None and key is None else cls(cacert, cert, key)

    @property
    def asks_clients(self) -> bool:
        """Whether servers require a certificate from every client."""
        return self.cacert is not None

    def check(self) -> None:
        """Raise ``UsageError`` for files that are missing, cannot be read or have unexpected contents."""
        if self.cert is None or self.key is None:
            given, missing = ("key", "cert") if self.cert is None and self.key is not None else ("cert", "key")
            if self.cert is None and self.key is None:
                given, missing = "cacert", "cert and key"
            raise UsageError(
                f"--rdzv-conf: {given} given without {missing}",
                remedy="With TLS every node needs a certificate and its key: any of them may have to serve the others.",
            )
        self.texts()
        self.context()

    def check_client(self) -> None:
        """Check the files as ``check`` does, for a process that never serves: it needs no certificate of its own."""
        self.context()

    def texts(self) -> CertificateTexts:
        """The current contents of the files. Raises ``UsageError``."""
        return CertificateTexts(*(b"" if path is None else read_file(path, name) for name, path in self._paths()))

    def fitting(self) -> Fitting:
        """What the files hold, or while they are being replaced, what they held when they last fitted each other.

        Raises ``UsageError`` if they were never right in this process.
        """
        paths = self.cacert, self.cert, self.key
        known = SYSTEM.single(_Known)
        with known.lock:
            kept, stamp = known.fitting.get(paths), self.stamp()
            if kept is not None and kept.stamp == stamp:
                return kept
            try:
                # for both kinds at once: a server that is begun while files are replaced needs the other one, too
                checking, not_checking = _context(*paths, checks_host=True), _context(*paths, checks_host=False)
                fresh = Fitting(stamp, self.texts(), checking, not_checking)
            except UsageError:
                if kept is None:
                    raise
                return kept
            if kept is not None and self.stamp() != stamp:  # they were replaced while they were read
                return kept
            known.fitting[paths] = fresh
            return fresh

    def context(self) -> ssl.SSLContext:
        """A context for connections to others, from what ``fitting`` returns. Raises ``UsageError``."""
        fitting = self.fitting()
        return fitting.checking if self.checks_host else fitting.not_checking

    def stamp(self) -> tuple[object, ...]:
        """A value that differs when a file has changed."""
        return tuple(None if path is None else stamp_of(path) for _, path in self._paths())

    def within_one_process(self) -> NodeCertificates:
        """These files for a server of this process itself, by whatever name it is dialled."""
        return NodeCertificates(self.cacert, self.cert, self.key, checks_host=False)

    def _paths(self) -> tuple[tuple[str, str | None], ...]:
        return tuple((name, getattr(self, name)) for name in OPTIONS)


class _Known:
    """What files hold, by their paths: making a context takes longer than a connection. OpenSSL is never simulated."""

    def __init__(self, runtime: Runtime) -> None:
        self.lock = runtime.Lock()
        self.fitting: dict[tuple[str | None, ...], Fitting] = {}


def _context(cacert: str | None, cert: str | None, key: str | None, *, checks_host: bool) -> ssl.SSLContext:
    import ssl

    made = load_context(cacert, cert, key)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = checks_host
    return made


def certificates_of(request: Request) -> NodeCertificates | None:
    """The certificates of a node of ``request``; None if its nodes use no TLS between them. Reads no file."""
    if request.options is None:
        return NodeCertificates.given(request.conf.get)
    if isinstance(request.options, NodeTlsOptions):
        return NodeCertificates.given(functools.partial(getattr, request.options))
    return None  # those of a service, or none


def load_context(cacert: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """A context for connections to servers, from these files. Raises ``UsageError`` for unexpected contents."""
    import ssl

    if (cert is None) != (key is None):
        raise UsageError(
            "--rdzv-conf: cert and key must be given together", remedy="A client certificate needs both files."
        )
    for name, path in zip(OPTIONS, (cacert, cert, key), strict=True):
        if path is not None:
            read_file(path, name)
    try:
        context = ssl.create_default_context(cafile=cacert)
    except ssl.SSLError:
        raise UsageError(
            f"--rdzv-conf: no certificate in cacert={cacert}",
            remedy="It must be a PEM file: text with BEGIN CERTIFICATE.",
        ) from None
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password="")  # otherwise it would ask for one at the terminal
        except ssl.SSLError as error:
            raise UsageError(
                f"--rdzv-conf: cert={cert} and key={key} do not work together: "
                f"{(error.reason or str(error)).replace('_', ' ').lower()}",
                remedy="Both must be PEM files, and the key must not have a password.",
            ) from None
    return context


def read_file(path: str, name: str) -> bytes:
    """The contents of the file that was given for option ``name``. Raises ``UsageError``."""
    if name in ("key", "credentials"):
        warn_if_others_can_read(path, name)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"--rdzv-conf: {name}={path} cannot be read: {(error.strerror or str(error)).lower()}",
            remedy="Give the path of a file on this node that this user may read.",
        ) from None


def stamp_of(path: str) -> tuple[int, ...] | None:
    """What changes when the file does; None if it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:  # it is being replaced
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size  # ctime: it may become readable by its mode alone


def warn_if_others_can_read(path: str, option: str) -> None:
    """Warn once for each file, and say what to do. Callable from any thread; raises nothing.

    It is a warning, not a refusal as in ssh: a secret mounted by Kubernetes has mode 0644 and belongs to root, in a
    place where there is nobody else, and cannot be changed from inside. Group permissions are ignored: they are how
    such a file is given to a user.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:  # whoever reads it reports what is wrong
        return
    if mode & stat.S_IROTH:
        _warn(path, option, mode)


@functools.cache
def _warn(path: str, option: str, mode: int) -> None:
    logger.warning(
        "--rdzv-conf %s=%s is readable by every user of this machine (mode %04o). To restrict it: chmod 600 %s",
        option,
        path,
        mode,
        path,
    )
