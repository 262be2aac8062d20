from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rdzv_plugins.backends.etcd import EtcdOptions, validate
from rdzv_plugins.backends.etcd.security import ACCOUNT, PASSWORD, USER, EtcdSecurity
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request


def request(endpoint: str = "h1", **options: object) -> Request:
    return Request("etcd", "run", endpoint, min_nodes=1, max_nodes=2, nproc_per_node=1, options=EtcdOptions(**options))


def security_of(given: Request) -> EtcdSecurity:
    return validate(given)[1]


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    monkeypatch.delenv(USER, raising=False)
    monkeypatch.delenv(PASSWORD, raising=False)


@pytest.fixture(scope="module")
def pem(tmp_path_factory) -> str:
    """An authority's certificate, and in the same file a certificate with its key."""
    authority = trustme.CA()
    path: Path = tmp_path_factory.mktemp("pem") / "some.pem"
    own = authority.issue_cert("localhost")
    path.write_bytes(b"".join(blob.bytes() for blob in (own.private_key_pem, *own.cert_chain_pems, authority.cert_pem)))
    return str(path)


@pytest.mark.parametrize(
    ("endpoint", "options", "tls"),
    [
        ("h1", {}, False),
        ("https://h1", {}, True),
        ("h1", {"protocol": "https"}, True),
        ("h1", {"cacert": "PEM"}, True),
        ("h1", {"cert": "PEM", "key": "PEM"}, True),
    ],
)
def test_plain_unless_tls_is_asked_for(pem, endpoint, options, tls):
    given = {name: pem if value == "PEM" else value for name, value in options.items()}
    assert security_of(request(endpoint, **given)).tls is tls


@pytest.mark.parametrize(
    ("endpoint", "options", "match"),
    [
        ("https://h1", {"protocol": "http"}, "contradicts"),
        ("http://h1", {"cacert": "PEM"}, "http was asked for"),
        ("h1", {"cert": "PEM"}, "only one"),
        ("h1", {"key": "PEM"}, "only one"),
        ("h1", {"cacert": "/no/such/file"}, "cacert=/no/such/file cannot be read: no such file"),
        ("h1", {"cacert": __file__}, f"cacert={__file__} holds no certificate"),
        ("h1", {"cert": "PEM", "key": __file__}, f"key={__file__} are not a certificate and its key"),
        ("h1", {"cert": "PEM", "key": "LOCKED"}, "are not a certificate and its key"),  # instead of asking for it
    ],
)
def test_contradictions_and_what_is_no_such_file_are_refused(pem, tmp_path, endpoint, options, match):
    locked = tmp_path / "key"
    plain = load_pem_private_key(Path(pem).read_bytes(), None)
    locked.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    files = {"PEM": pem, "LOCKED": str(locked)}
    with pytest.raises(UsageError, match=match) as caught:
        security_of(request(endpoint, **{name: files.get(value, value) for name, value in options.items()}))
    assert caught.value.remedy


def test_credentials_come_from_a_file_or_from_the_environment(tmp_path, monkeypatch):
    assert ACCOUNT.read(None) == ("", "")
    monkeypatch.setenv(USER, "ann")
    with pytest.raises(UsageError, match=f"only {USER} is set"):
        ACCOUNT.read(None)
    monkeypatch.setenv(PASSWORD, "secret")
    assert ACCOUNT.read(None) == ("ann", "secret")
    file = tmp_path / "etcd"
    file.write_text("bob:with:colon\n")
    assert ACCOUNT.read(str(file)) == ("bob", "with:colon")


@pytest.mark.parametrize("text", ["", "bob", "bob:", ":secret", "bob:secret\nann:secret\n"])
def test_a_file_without_user_and_password_is_refused_without_telling_what_it_holds(tmp_path, text):
    file = tmp_path / "etcd"
    file.write_text(text)
    with pytest.raises(UsageError, match="one line of the form user:password") as caught:
        ACCOUNT.read(str(file))
    assert "secret" not in f"{caught.value} {caught.value.remedy}"


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_secrets_that_others_can_read_are_spoken_of_once(pem, tmp_path, caplog, mode, warned):
    file, key = tmp_path / "etcd", tmp_path / "key"
    file.write_text("bob:secret")
    key.write_bytes(Path(pem).read_bytes())
    for each in (file, key):
        each.chmod(mode)
    for _ in range(2):
        assert ACCOUNT.read(str(file)) == ("bob", "secret")
        EtcdSecurity(tls=True, cacert=pem, cert=pem, key=str(key))
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(" can be read by every user")[0] for text in said] == (
        [f"--rdzv-conf credentials={file}", f"--rdzv-conf key={key}"] if warned else []
    )
    assert all(f"chmod 600 {path}" in text for path, text in zip((file, key), said, strict=False))
    assert "bob:secret" not in caplog.text


def test_credentials_are_read_again_and_kept_while_the_file_is_being_written(tmp_path):
    file = tmp_path / "etcd"
    login = EtcdSecurity(user="bob", password="old", credentials=str(file))
    for text, known in (("bob:new\n", ("bob", "new")), ("bo", ("bob", "old"))):
        file.write_text(text)
        assert login.login() == known
    file.unlink()
    assert login.login() == ("bob", "old")
    assert EtcdSecurity(user="ann", password="x").login() == ("ann", "x")


def test_the_password_is_in_no_text_of_it():
    assert "secret" not in repr(EtcdSecurity(user="ann", password="secret"))
