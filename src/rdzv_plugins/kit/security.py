"""TLS and passwords, from options, files and the environment, checked before anything starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdzv_plugins.errors import UsageError
from rdzv_plugins.options import option
from rdzv_plugins.security.certificates import half_of_a_pair, load_context, read_file

if TYPE_CHECKING:
    import ssl  # slow: for those who have TLS


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

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise half_of_a_pair()
        for name in ("cacert", "cert", "key"):
            path = getattr(self, name)
            if path is not None:
                read_file(path, name)
        if self.cacert is not None or self.cert is not None:
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
