"""Passwords and TLS, against a real server that wants them; and what is refused before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.kit.kit_parts import T, backend_at, refused
from kits.wire.tls_kit import Issued, authority
from rdzv_http.conformance import http_server

from rdzv_plugins.errors import AccessRefused, UsageError
from rdzv_plugins.kit import Account, Security
from rdzv_plugins.testing import ServerProcess, free_port
from rdzv_plugins.testing.parts import opened


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Issued(tmp_path_factory.mktemp("certificates"), hosts=("127.0.0.1",))


@pytest.fixture(scope="module")
def with_tls(issued: Issued, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("tls") / "log"
    server = http_server(free_port(), log, f"--cert={issued.cert}", f"--key={issued.key}")
    server.start()
    yield server
    server.kill()


def test_a_password(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("me:pa:ss\n")
    file.chmod(0o600)
    server = http_server(free_port(), tmp_path / "log", f"--credentials={file}")
    server.start()
    try:
        for wrong in (Security(), Security(user="me", password="secret")):
            error = refused(server.port, security=wrong)
            assert isinstance(error, AccessRefused)
            assert f"does not take the password of {wrong.who}" in str(error)
            assert "secret" not in str(error)
        user, password = Account("http").read(str(file))
        with backend_at(server.port, security=Security(user=user, password=password)) as backend:
            assert opened(backend).create("k", b"", timeout=T)[0]
    finally:
        server.kill()


def test_tls(with_tls: ServerProcess, issued: Issued, tmp_path: Path, server: ServerProcess) -> None:
    trusting = Security(True, str(issued.cacert))
    with backend_at(with_tls.port, security=trusting) as backend:
        assert opened(backend).put({"k": b"x" * 100_000}, timeout=T)
    stranger = str(tmp_path / "ca.pem")
    authority("theirs").cert_pem.write_to_path(stranger)
    error = refused(with_tls.port, security=Security(True, stranger))
    assert "its certificate is refused" in str(error)
    assert stranger in error.remedy
    assert "cacert=FILE" in refused(with_tls.port, security=Security(True)).remedy
    error = refused(with_tls.port, host="localhost", security=trusting)
    assert "subject alternative name" in error.remedy
    assert "it does not speak TLS" in str(refused(server.port, security=trusting))


def test_files_that_are_not_what_they_should_be(issued: Issued, tmp_path: Path) -> None:
    cacert, cert, key = str(issued.cacert), str(issued.cert), str(issued.key)
    empty = tmp_path / "empty"
    empty.touch()
    wrong = [
        ({"cert": cert}, "must be given together"),
        ({"cacert": str(empty)}, "no certificate in"),
        ({"cacert": "/no/such/file"}, "cannot be read: no such file"),
        ({"cert": cert, "key": cacert}, "do not work together"),
    ]
    for given, says in wrong:
        with pytest.raises(UsageError, match=says) as raised:
            Security(True, **given)
        assert raised.value.remedy
    assert Security(True, cacert, cert, key).context().check_hostname


@pytest.mark.parametrize("text", ["", "user only", "a:b\nc:d\n", ":secret", "me:"])
def test_a_file_of_something_else_has_no_password(text: str, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(UsageError, match="one line of the form user:password") as raised:
        Account("http").read(str(file))
    assert "secret" not in str(raised.value)


def test_the_environment_is_read_and_then_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    account, lone = Account("http"), Account("http", default_user="default")
    assert account.read(None) == ("", "")
    monkeypatch.setenv("RDZV_HTTP_PASSWORD", "secret")
    assert lone.read(None) == ("default", "secret")
    with pytest.raises(UsageError, match="RDZV_HTTP_USER is not"):
        account.read(None)
    monkeypatch.setenv("RDZV_HTTP_USER", "me")
    assert account.read(None) == ("me", "secret")
    account.forget()
    assert not {"RDZV_HTTP_USER", "RDZV_HTTP_PASSWORD"} & os.environ.keys()
    monkeypatch.setenv("RDZV_HTTP_USER", "me")
    with pytest.raises(UsageError, match="RDZV_HTTP_PASSWORD is not"):
        lone.read(None)
    assert "secret" not in repr(Security(user="me", password="secret"))
