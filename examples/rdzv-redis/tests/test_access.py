"""Passwords, users and TLS, against a real Redis that wants them."""

from __future__ import annotations

import dataclasses
import os
import signal
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trustme
from kit import T, backend_at, client, opened, redis_server, refused, wait_until
from rdzv_plugins import CoordinationBackend, Request
from rdzv_plugins.errors import AccessRefused, UsageError
from rdzv_plugins.kit import Security
from rdzv_plugins.options import parse_options
from rdzv_plugins.testing import ServerProcess

from rdzv_redis import RedisOptions, create, validate


@dataclass
class Certificates:
    """Files of an authority, of a server and of a client."""

    ca: trustme.CA
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cacert = str(self.folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.cacert)

    def issue(self, name: str) -> tuple[str, str]:
        issued = self.ca.issue_cert(name)
        cert, key = str(self.folder / f"{name}.pem"), str(self.folder / f"{name}-key.pem")
        issued.private_key_pem.write_to_path(key)
        with open(cert, "wb") as file:
            file.writelines(blob.bytes() for blob in issued.cert_chain_pems)
        return cert, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(trustme.CA(), tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def with_tls(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """It wants TLS, and knows clients by their certificates or lets them do without."""
    cert, key = certificates.issue("127.0.0.1")
    settings = {"port": "0", "tls-cert-file": cert, "tls-key-file": key, "tls-ca-cert-file": certificates.cacert}
    with redis_server(tmp_path_factory.mktemp("tls"), settings | {"tls-auth-clients": "optional"}) as server:
        yield server


@pytest.fixture(scope="module")
def with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """It wants a password, has a user for what we need, and one who may do too little."""
    with redis_server(tmp_path_factory.mktemp("users"), {"requirepass": "secret"}) as server:
        with client(server.port, password="secret") as redis:
            # as docs and README have it
            redis.execute_command(
                "ACL", "SETUSER", "trainer", "on", ">pw", "~rdzv-plugins/*", "+@all", "-@admin", "-@dangerous"
            )
            redis.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection")
            redis.execute_command("ACL", "SETUSER", "other", "on", ">pw", "~elsewhere/*", "+@all")
        yield server


def test_a_password(with_users: ServerProcess) -> None:
    port = with_users.port
    error = refused(port)
    assert isinstance(error, AccessRefused)
    assert "it wants a password, and this node has none" in str(error)
    error = refused(port, security=Security(user="default", password="wrong"))
    assert isinstance(error, AccessRefused)
    assert "does not accept the password of user 'default'" in str(error)
    assert "wrong" not in str(error)
    for user, password in (("default", "secret"), ("trainer", "pw")):
        with backend_at(port, security=Security(user=user, password=password)) as backend:
            session = opened(backend)
            assert session.put({"k": b""}, ephemeral=True, timeout=T)
            assert session.list("", timeout=T)[0]


def test_a_password_in_the_clear_is_warned_of(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "credentials"
    file.write_text("me:secret\n")
    file.chmod(0o600)
    for quiet in (
        request(),
        request("rediss://redis-1", credentials=str(file)),
        request(credentials=str(file), cacert=certificates.cacert),
        request("127.0.0.1", credentials=str(file)),
        request("[::1]:6400", credentials=str(file)),
        request("localhost", credentials=str(file)),
    ):
        created(quiet)
    assert caplog.text == ""
    created(request(credentials=str(file)))
    assert "the password of user 'me' goes to redis-1:6379 in the clear" in caplog.text
    assert "secret" not in caplog.text


def test_a_user_who_may_not(with_users: ServerProcess) -> None:
    for user in ("reader", "other"):
        error = refused(with_users.port, security=Security(user=user, password="pw"))
        assert isinstance(error, AccessRefused)
        assert f"does not let user '{user}' do what is needed for keys under rdzv-plugins" in str(error)
        assert f"ACL SETUSER {user} ~rdzv-plugins*" in error.remedy


def test_a_password_that_nobody_has_asked_for(harness: Any) -> None:
    error = refused(harness.service.port, security=Security(user="nobody", password="pw"))
    assert isinstance(error, AccessRefused)


def test_permissions_that_are_taken_away_for_a_moment(with_users: ServerProcess) -> None:
    with client(with_users.port, password="secret") as redis:
        redis.execute_command("ACL", "SETUSER", "brief", "on", ">pw", "~*", "+@all")
        with backend_at(with_users.port, "brief", security=Security(user="brief", password="pw")) as backend:
            session = opened(backend)
            redis.execute_command("ACL", "SETUSER", "brief", "-@scripting")
            with pytest.raises(TimeoutError, match="user 'brief'"):
                session.put({"k": b""}, timeout=3)
            redis.execute_command("ACL", "SETUSER", "brief", "+@scripting")
            assert session.put({"k": b""}, timeout=T)


def test_a_refusal_counts_for_more_than_an_attempt_that_is_cut_short(
    with_users: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis stands still from the refusal on: the time is up sooner than an answer would count as lost."""
    monkeypatch.setattr("rdzv_redis.client._FIRST_ATTEMPT_S", T)
    with client(with_users.port, password="secret") as redis:
        redis.execute_command("ACL", "SETUSER", "silent", "on", ">pw", "~*", "+@all")
        with backend_at(with_users.port, "silent", security=Security(user="silent", password="pw")) as backend:
            session = opened(backend)
            redis.execute_command("ACL", "SETUSER", "silent", "-@scripting")
            with ThreadPoolExecutor() as threads:
                asked = threads.submit(session.put, {"k": b""}, timeout=3)
                wait_until(lambda: "'silent'" in str(redis.acl_log()))
                os.kill(with_users.pids[0], signal.SIGSTOP)
                try:
                    with pytest.raises(TimeoutError, match="user 'silent'"):
                        asked.result()
                finally:
                    os.kill(with_users.pids[0], signal.SIGCONT)


def test_tls(with_tls: ServerProcess, certificates: Certificates) -> None:
    cert, key = certificates.issue("client")
    for security in (
        Security(True, certificates.cacert),
        Security(True, certificates.cacert, cert, key),
    ):
        with backend_at(with_tls.port, security=security) as backend:
            session = opened(backend)
            assert session.put({"k": b"x" * 100_000}, timeout=T)
            assert session.remote_addr == "127.0.0.1"


def test_tls_on_one_side_only(with_tls: ServerProcess, certificates: Certificates, harness: Any) -> None:
    error = refused(with_tls.port)
    assert "it speaks TLS" in str(error)
    assert "rediss://" in error.remedy
    error = refused(harness.service.port, security=Security(True, certificates.cacert))
    assert "it does not speak TLS" in str(error)


def test_certificates_that_are_not_trusted(with_tls: ServerProcess, certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(trustme.CA(), tmp_path)
    error = refused(with_tls.port, security=Security(True, stranger.cacert))
    assert "its certificate is refused" in str(error)
    assert stranger.cacert in error.remedy
    assert "cacert=FILE" in refused(with_tls.port, security=Security(True)).remedy
    error = refused(with_tls.port, security=Security(True, certificates.cacert, *stranger.issue("client")))
    assert "it refuses this node" in str(error)
    error = refused(with_tls.port, host="localhost", security=Security(True, certificates.cacert))
    assert "subject alternative name" in error.remedy


def test_a_certificate_that_is_wanted(certificates: Certificates, tmp_path: Path) -> None:
    cert, key = certificates.issue("127.0.0.1")
    settings = {"port": "0", "tls-cert-file": cert, "tls-key-file": key, "tls-ca-cert-file": certificates.cacert}
    with redis_server(tmp_path, settings) as server:
        error = refused(server.port, security=Security(True, certificates.cacert))
        assert "it refuses this node" in str(error)
        assert "cert=FILE,key=FILE" in error.remedy
        assert "it speaks TLS" in str(refused(server.port))


def test_only_the_given_authorities_are_trusted(certificates: Certificates) -> None:
    from rdzv_redis.target import Target
    from rdzv_redis.wire import Wire

    wire = Wire(Target("h", 1), Security(True, certificates.cacert))
    context: ssl.SSLContext = wire._connection.ssl_context.get()
    assert len(context.get_ca_certs()) == 1
    assert context.check_hostname


def request(endpoint: str = "redis-1", **conf: str) -> Request:
    return Request(
        backend="redis",
        run_id="r",
        endpoint=endpoint,
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        conf=MappingProxyType(conf),
        options=parse_options(RedisOptions, conf, "backend 'redis'"),
    )


def created(given: Request) -> CoordinationBackend:
    """As the launcher makes it."""
    return create(dataclasses.replace(given, target=validate(given)))


def test_what_is_refused_before_anything_starts(certificates: Certificates, tmp_path: Path) -> None:
    cert, key = certificates.issue("client")
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.touch()
    broken.write_text("user only\n")
    wrong: list[tuple[Request, str]] = [
        (request(cert=cert), "must be given together"),
        (request(cacert=str(empty)), "no certificate in"),
        (request(cacert="/no/such/file"), "cannot be read: no such file"),
        (request(cert=cert, key=certificates.cacert), "not a certificate and its key"),
        (request("redis://h", cacert=certificates.cacert), "says redis://"),
        (request(credentials=str(broken)), "user:password"),
    ]
    for each, says in wrong:
        with pytest.raises(UsageError, match=says) as raised:
            validate(each)
        assert raised.value.remedy
    validate(request("rediss://h", cert=cert, key=key))
    validate(request(cacert=certificates.cacert))


def test_the_password_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDZV_REDIS_PASSWORD", "secret")
    _, security = validate(request())
    assert (security.user, security.password) == ("default", "secret")
    assert "secret" not in repr(security)
    created(request())
    assert "RDZV_REDIS_PASSWORD" not in os.environ
    file = tmp_path / "credentials"
    file.write_text("me:pa:ss\n")
    assert validate(request(credentials=str(file)))[1].password == "pa:ss"
    monkeypatch.setenv("RDZV_REDIS_USER", "me")
    with pytest.raises(UsageError, match="RDZV_REDIS_PASSWORD is not"):
        validate(request())
