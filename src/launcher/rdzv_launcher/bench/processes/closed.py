"""What keeps strangers out of a job, made for one benchmark: a token, certificates, or both."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rdzv_launcher.bench.method.settings import setting
from rdzv_plugins.certificates import NodeCertificates
from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.job_token import OPTION, AcceptedToken, JobToken, accepted_tokens

TOKEN, TLS, BOTH = "token", "tls", "token+tls"
WAYS = (TOKEN, TLS, BOTH)
RUN = "bench"
"""The run to which trunks and sessions belong where there is no job."""
OPEN: Mapping[str, str] = MappingProxyType({})
"""What ``conf_of`` returns for a job that is not closed."""
_LOOPBACK = "127.0.0.1"
_DAYS = "2"


def closed_setting(who: str, needs: str = "") -> Any:
    """The field ``closed`` of a settings class: ``who`` is measured once more in each of the ways that it names."""
    return setting(
        (),
        metavar="A,B",
        choices=WAYS,
        help=f"{who} once more, closed to strangers: token, tls, token+tls (default: not; needs {needs}for tls the "
        "command openssl)",
    )


def conf_of(way: str, directory: Path, addresses: Iterable[str] = ()) -> Mapping[str, str]:
    """``--rdzv-conf`` of a job on 127.0.0.1, and the ``addresses``, that is closed in this ``way``.

    Its files are in ``directory``.

    Raises ``MissingDependency`` if certificates are wanted and there is no command openssl.
    """
    conf: dict[str, str] = {}
    if way in (TOKEN, BOTH):
        conf[OPTION] = str(_token(directory))
    if way in (TLS, BOTH):
        conf |= _certificates(directory, dict.fromkeys((_LOOPBACK, *addresses)))
    return conf


def of_server(conf: Mapping[str, str]) -> tuple[tuple[AcceptedToken, ...], NodeCertificates | None]:
    """What a server with such a ``conf`` asks of those who connect; nothing for an empty one."""
    tokens = accepted_tokens(conf[OPTION]) if OPTION in conf else None
    return tokens or (), NodeCertificates.given(conf.get)


def of_client(conf: Mapping[str, str]) -> tuple[JobToken | None, NodeCertificates | None]:
    """What a client of such a server proves, and shows."""
    tokens, certificates = of_server(conf)
    return JobToken(tuple(each.key for each in tokens)) if tokens else None, certificates


def _token(directory: Path) -> Path:
    path = directory / "token"
    path.touch(0o600)
    path.write_text(secrets.token_hex(32))
    return path


def _certificates(directory: Path, addresses: Iterable[str]) -> Mapping[str, str]:
    """Make certificates as docs/explanation/security.md says."""
    cacert, cert, key = (directory / name for name in ("ca.pem", "node.pem", "node-key.pem"))
    of_authority, request, names = (directory / name for name in ("ca-key.pem", "node.csr", "node.ext"))
    names.write_text("subjectAltName=" + ",".join(f"IP:{address}" for address in addresses) + "\n")
    curve = ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out")
    signed = ("-in", request, "-CA", cacert, "-CAkey", of_authority, "-CAcreateserial", "-days", _DAYS)
    _openssl(*curve, of_authority)
    _openssl("req", "-x509", "-new", "-key", of_authority, "-days", _DAYS, "-subj", "/CN=a benchmark", "-out", cacert)
    _openssl(*curve, key)
    _openssl("req", "-new", "-key", key, "-subj", "/CN=a node", "-out", request)
    _openssl("x509", "-req", *signed, "-extfile", names, "-out", cert)
    return {"cacert": str(cacert), "cert": str(cert), "key": str(key)}


def _openssl(*arguments: str | os.PathLike[str]) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise MissingDependency(
            "certificates cannot be made: there is no command openssl here",
            remedy="Install it (apt-get install openssl, or the like), or measure without tls.",
        ) from None
