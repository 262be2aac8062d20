"""Where a service is, TLS and passwords: from the endpoint, options, files and the environment, before anything starts.

All raise ``UsageError`` for what cannot work.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import option
from rdzv_plugins.security.certificates import load_context, read_file

if TYPE_CHECKING:
    import ssl  # slow: for those who have TLS


def parse_address(
    text: str, default_port: int, schemes: tuple[str, str], *, has_path: bool = False
) -> tuple[str, Endpoint, str]:
    """Split ``[SCHEME://]HOST[:PORT]``, or ``SCHEME://HOST[:PORT][/PATH]`` if it ``has_path``.

    ``schemes`` are the one without TLS and the one with TLS. Returns the scheme, the endpoint and the path; the first
    and the last are empty if not given.
    """
    text = text.strip()
    scheme, sign, rest = text.rpartition("://")
    if "@" in rest:  # do not repeat it here
        raise UsageError(
            "--rdzv-endpoint: a user or a password in it can be read by others, in the list of processes",
            remedy="Give --rdzv-conf credentials=FILE (one line, user:password), or the environment's variables.",
        )
    plain, secure = schemes
    if sign and scheme not in schemes:
        raise UsageError(
            f"--rdzv-endpoint: {text!r} begins with neither {plain}:// nor {secure}://",
            remedy=f"Write HOST:PORT, or {secure}://HOST:PORT for TLS.",
        )
    path = ""
    if sign and has_path:
        rest, _, path = rest.partition("/")
    endpoint = parse_endpoint(rest.rstrip("/") if sign else rest, default_port)
    if endpoint.port == 0:
        raise UsageError(f"--rdzv-endpoint: {text!r} has port 0", remedy=f"The default port is {default_port}.")
    return scheme, endpoint, path


@dataclass(frozen=True)
class Security:
    """How to talk to a service, and as whom. Files are PEM; no text form of this shows the password.

    Making one raises ``UsageError`` for files that are missing, cannot be read or hold something else.
    """

    tls: bool = False
    cacert: str | None = None
    """File of the authorities to trust, and no others; None: the system's."""
    cert: str | None = None
    key: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    credentials: str | None = None
    """The file that user and password come from, if any. It may be written again while the job runs."""

    def __post_init__(self) -> None:
        if (self.cacert, self.cert, self.key) != (None, None, None):
            self.context()

    @property
    def who(self) -> str:
        """What messages call the user of these credentials."""
        return f"user {self.user!r}" if self.user else "a node without a user"

    def context(self) -> ssl.SSLContext:
        """Make the context for Python's TLS. Raises ``UsageError`` for files that hold something else."""
        return load_context(self.cacert, self.cert, self.key)


@dataclass(frozen=True)
class Account:
    """Where a node's user and password for a service come from: a one-line file, or two variables.

    ``service`` is part of the variables' names: ``RDZV_REDIS_USER`` for "redis". ``default_user`` is the user of a
    password given alone; without a default, user and password have to be given together.
    """

    service: str
    default_user: str = ""

    @property
    def user_variable(self) -> str:
        """The variable with the user's name."""
        return f"RDZV_{self.service.upper()}_USER"

    @property
    def password_variable(self) -> str:
        """The variable with the password."""
        return f"RDZV_{self.service.upper()}_PASSWORD"

    @property
    def remedy_if_missing(self) -> str:
        """What to do if the service wants a password and there is none."""
        return f"Give --rdzv-conf credentials=FILE (one line, user:password), or set {self._variables}."

    @property
    def remedy_if_wrong(self) -> str:
        """What to do if the service does not accept the password."""
        return f"Check the file of --rdzv-conf credentials, or {self._variables}."

    @property
    def _variables(self) -> str:
        return f"{self.user_variable} and {self.password_variable}"

    def read(self, path: str | None) -> tuple[str, str]:
        """Return user and password, from the file at ``path`` or from the environment; empty if there are none.

        Raises ``UsageError`` for a file that cannot be read or holds something else, and for half of a pair.
        """
        if path is not None:
            return self._of_file(path)
        user, password = os.environ.get(self.user_variable, ""), os.environ.get(self.password_variable, "")
        if password and not user and not self.default_user:
            raise self._half(self.password_variable, self.user_variable)
        if user and not password:
            raise self._half(self.user_variable, self.password_variable)
        return (user or self.default_user, password) if password else ("", "")

    def login(self, security: Security) -> tuple[str, str]:
        """User and password as the file has them now, or those from the start if it has none. Reads the file."""
        if security.credentials is not None:
            with contextlib.suppress(UsageError):  # it is being written
                return self.read(security.credentials)
        return security.user, security.password

    def _of_file(self, path: str) -> tuple[str, str]:
        lines = read_file(path, "credentials").decode(errors="replace").strip().splitlines()
        user, colon, password = lines[0].partition(":") if len(lines) == 1 else ("", "", "")
        user = user or self.default_user
        if not (user and colon and password):
            raise UsageError(
                f"--rdzv-conf: credentials={path} does not hold one line of the form user:password",
                remedy="Write the name of the user"
                + (f" ({self.default_user}, if there is none)" if self.default_user else "")
                + ", a colon and the password into it, and nothing else.",
            )
        return user, password

    def _half(self, there: str, missing: str) -> UsageError:
        return UsageError(
            f"only {there} is set, and {missing} is not",
            remedy="Set both, or give a file by --rdzv-conf credentials=FILE.",
        )

    def forget(self) -> None:
        """Remove both from the environment, which workers inherit and print: they must not find the password there."""
        os.environ.pop(self.password_variable, None)
        os.environ.pop(self.user_variable, None)


@dataclass(frozen=True)
class TlsOptions:
    """Keys of --rdzv-conf for TLS, to derive from together with ``ElasticOptions``."""

    cacert: str | None = option(
        None, help="File with the certificates of the authorities to trust; means TLS. Unset: the system's."
    )
    cert: str | None = option(None, help="File with this client's certificate; means TLS, and needs key.")
    key: str | None = option(None, help="File with the private key of cert.")

    def security(self, account: Account, credentials: str | None, schemes: tuple[str, str], asked: str) -> Security:
        """How to talk to a service, and as whom, if the user has ``asked`` for one of ``schemes``.

        These are the one without TLS and the one with TLS. If neither was asked for, it is TLS if there is a file for
        it. ``credentials``: as for ``Account.read``.
        """
        plain, secure = schemes
        has_files = bool(self.cacert or self.cert)
        if has_files and asked == plain:
            raise UsageError(
                f"--rdzv-conf: cacert and cert are for TLS, but {plain} was asked for",
                remedy=f"Write {secure}, or leave them out.",
            )
        tls = asked == secure or (has_files and not asked)
        return Security(tls, self.cacert, self.cert, self.key, *account.read(credentials), credentials)
