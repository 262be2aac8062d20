"""TLS and passwords: from options, files and the environment, checked before anything starts."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from rdzv_plugins.errors import UsageError

USER = "RDZV_REDIS_USER"
PASSWORD = "RDZV_REDIS_PASSWORD"
DEFAULT_USER = "default"
"""Redis' own name for whoever gives a password alone (``requirepass``)."""


@dataclass(frozen=True)
class Security:
    """How to talk to Redis, and as whom. Files are PEM. The password is in no text of it."""

    tls: bool = False
    cacert: str | None = None
    """Authorities to trust, and no others; None: the system's."""
    cert: str | None = None
    key: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UsageError(
                "--rdzv-conf: of cert and key only one is given", remedy="A client certificate needs both files."
            )
        for name in ("cacert", "cert", "key"):
            path = getattr(self, name)
            if path is not None:
                _read(path, name)
        if self.tls:
            self.context()

    @property
    def who(self) -> str:
        """For messages."""
        return f"user {self.user!r}" if self.user else "a node without a user"

    def context(self) -> ssl.SSLContext:
        """For Python's TLS. Raises ``UsageError`` for files that hold something else."""
        try:
            context = ssl.create_default_context(cafile=self.cacert)
        except ssl.SSLError:
            raise UsageError(
                f"--rdzv-conf: cacert={self.cacert} holds no certificate",
                remedy="It has to be PEM: text with BEGIN CERTIFICATE in it.",
            ) from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password="")  # else it would ask for one at the terminal
            except ssl.SSLError as error:
                raise UsageError(
                    f"--rdzv-conf: cert={self.cert} and key={self.key} are not a certificate and its key: "
                    f"{(error.reason or str(error)).replace('_', ' ').lower()}",
                    remedy="Both have to be PEM, and the key without a password.",
                ) from None
        return context


def forget_password() -> None:
    """Workers inherit the environment, and print it: they are not to find the password there."""
    os.environ.pop(PASSWORD, None)
    os.environ.pop(USER, None)


def credentials(path: str | None) -> tuple[str, str]:
    """User and password, from the file at ``path``, else from the environment; empty if there are none.

    A password without a user is for Redis' user ``default``. Raises ``UsageError`` for a file that cannot be read or
    holds something else, and for a user without a password.
    """
    if path is not None:
        lines = _read(path, "credentials").decode(errors="replace").strip().splitlines()
        user, _, password = lines[0].partition(":") if len(lines) == 1 else ("", "", "")
        if not password:
            raise UsageError(
                f"--rdzv-conf: credentials={path} does not hold one line of the form user:password",
                remedy="Write the user (default, for the password of requirepass), a colon and the password into it.",
            )
        return user or DEFAULT_USER, password
    user, password = os.environ.get(USER, ""), os.environ.get(PASSWORD, "")
    if user and not password:
        raise UsageError(
            f"{USER} is set, but {PASSWORD} is not",
            remedy="Set both, or give a file by --rdzv-conf credentials=FILE.",
        )
    return (user or DEFAULT_USER, password) if password else ("", "")


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"--rdzv-conf: {name}={path} cannot be read: {(error.strerror or str(error)).lower()}",
            remedy="Give the path of a file that exists on this node and that this user may read.",
        ) from None
