"""What keeps strangers out of a job, made for one benchmark: a token, certificates, or both."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.job_token import OPTION

TOKEN = "token"
_DAYS = "2"


def conf_of(way: str, directory: Path) -> Mapping[str, str]:
    """``--rdzv-conf`` of a job on 127.0.0.1 that is closed in this ``way``; its files are in ``directory``.

    Raises ``MissingDependency`` if certificates are wanted and there is no command openssl.
    """
    conf: dict[str, str] = {}
    if "token" in way:
        path = directory / "token"
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
        conf[OPTION] = str(path)
    if "tls" in way:
        conf |= _certificates(directory)
    return conf


def _certificates(directory: Path) -> Mapping[str, str]:
    """Make certificates as docs/explanation/security.md says."""
    cacert, cert, key = (directory / name for name in ("ca.pem", "node.pem", "node-key.pem"))
    of_authority, request, names = (directory / name for name in ("ca-key.pem", "node.csr", "node.ext"))
    names.write_text("subjectAltName=IP:127.0.0.1\n")
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
