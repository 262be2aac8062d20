"""Certificates as nodes of a job have them, good and bad."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path

import trustme

from rdzv_plugins.security.certificates import NodeCertificates

_NOW = datetime.datetime.now(datetime.timezone.utc)
_YEAR = datetime.timedelta(days=365)
HOSTS = ("127.0.0.1", "::1", "localhost")


@functools.cache
def authority(name: str = "ours") -> trustme.CA:
    """The same one for the same name: a key takes a while to make."""
    return trustme.CA(organization_name=name, key_type=trustme.KeyType.ECDSA)


class Issued:
    """Files of certificates in a folder, for ``hosts`` of this machine by the authority called ``by``."""

    def __init__(self, folder: Path, *, by: str = "ours", hosts: tuple[str, ...] = HOSTS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.cacert, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        self._by = by
        authority("ours").cert_pem.write_to_path(str(self.cacert))
        self.issue(hosts)

    def issue(self, hosts: tuple[str, ...] = HOSTS, *, years_from: int = -1, years_to: int = 1) -> None:
        """Write another certificate, valid between these years from now; the files are replaced as a whole."""
        made = authority(self._by).issue_cert(
            *hosts,
            not_before=_NOW + years_from * _YEAR,
            not_after=_NOW + years_to * _YEAR,
            key_type=trustme.KeyType.ECDSA,
        )
        part = self.cert.with_suffix(".part")
        for path, text in ((self.key, made.private_key_pem.bytes()), (self.cert, made.cert_chain_pems[0].bytes())):
            part.touch(0o600)
            part.write_bytes(text)
            part.rename(path)

    def trust(self, *names: str) -> None:
        """Have these authorities, and no others, in ``cacert``."""
        self.cacert.write_bytes(b"".join(authority(name).cert_pem.bytes() for name in names))

    @property
    def files(self) -> NodeCertificates:
        """For this node."""
        return NodeCertificates(str(self.cacert), str(self.cert), str(self.key))

    @property
    def conf(self) -> str:
        """The same as ``--rdzv-conf`` has it."""
        return f"cacert={self.cacert},cert={self.cert},key={self.key}"
