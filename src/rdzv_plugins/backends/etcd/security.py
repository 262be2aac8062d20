"""TLS and passwords as etcd needs them: a login that may change meanwhile."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

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
