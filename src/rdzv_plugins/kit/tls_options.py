"""The TLS options of a backend."""

from __future__ import annotations

from dataclasses import dataclass

from rdzv_plugins.options import option


@dataclass(frozen=True)
class TlsOptions:
    """Keys of --rdzv-conf for TLS, to derive from together with ``ElasticOptions``."""

    cacert: str | None = option(
        None, help="File with the certificates of the authorities to trust; means TLS. Unset: the system's."
    )
    cert: str | None = option(None, help="File with this client's certificate; means TLS, and needs key.")
    key: str | None = option(None, help="File with the private key of cert.")
