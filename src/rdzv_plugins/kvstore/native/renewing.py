"""Renews the certificates of a running server or proxy when their files have changed.

Existing connections stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rdzv_plugins.certificates import CertificateTexts, NodeCertificates
from rdzv_plugins.errors import UsageError
from rdzv_plugins.runtime import Runtime

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between two looks at the files."""


class Renewing:
    """A thread, from construction until ``close``, that looks at the files. Thread-safe."""

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
