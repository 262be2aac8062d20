"""TLS and passwords as gRPC and etcd need them: certificates in bytes, and a login that may change meanwhile."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from rdzv_plugins.certificates import read_file
from rdzv_plugins.errors import UsageError
from rdzv_plugins.kit.security import Account, Security

ACCOUNT = Account("etcd")
USER, PASSWORD = ACCOUNT.user_variable, ACCOUNT.password_variable


@dataclass(frozen=True)
class EtcdSecurity(Security):
    """How to talk to the members, and as whom."""

    credentials: str | None = None
    """The file that user and password come from, if any. It may be written again while the job runs."""

    def login(self) -> tuple[str, str]:
        """User and password as the file has them now, or those from the start if it has none. Reads the file."""
        if self.credentials is not None:
            with contextlib.suppress(UsageError):  # it is being written
                return ACCOUNT.read(self.credentials)
        return self.user, self.password

    @property
    def authorities(self) -> bytes | None:
        """The certificates to trust; None if the system has none where it says."""
        import ssl  # slow to import: only for those that use TLS

        path = self.cacert or ssl.get_default_verify_paths().cafile
        return read_file(path, "cacert") if path else None

    @property
    def certificate(self) -> tuple[bytes | None, bytes | None]:
        """(private key, certificate chain) of this client, if it has any."""
        if self.cert is None or self.key is None:
            return None, None
        return read_file(self.key, "key"), read_file(self.cert, "cert")
