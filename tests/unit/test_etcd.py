"""Options of etcd: its members, its keys in few transactions, TLS; no server is needed. Passwords: ``tests/kit``."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rdzv_plugins.backends.etcd import EtcdOptions, parse_members, validate
from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.backends.etcd.security import ACCOUNT, EtcdSecurity
from rdzv_plugins.backends.etcd.space import MOST_BYTES, MOST_OPERATIONS, Space
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.endpoints import Endpoint, is_only_local
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request


@pytest.mark.parametrize(
    ("text", "members", "scheme"),
    [
        ("h1:1, h2:2,h3", [("h1", 1), ("h2", 2), ("h3", 2379)], ""),
        ("https://h1:1/,https://[::1]:2", [("h1", 1), ("::1", 2)], "https"),
        ("http://h1,h2", [("h1", 2379), ("h2", 2379)], "http"),
        ("h1:1,h1:1,", [("h1", 1)], ""),
    ],
)
def test_members_are_parsed(text, members, scheme):
    assert parse_members(text) == (tuple(Endpoint(*each) for each in members), scheme)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (" , ", "needs to know where etcd is"),
        ("h1:1,h2:x", "port x is out of range"),
        ("h1,h2:0", "'h2:0' has port 0"),
        ("unix:///tmp/s", "neither http:// nor https://"),
        ("http://h1,https://h2", "mixes"),
        ("h1:1/path", "no valid host"),
        ("https://ann:secret@h1", "password in it"),
    ],
)
def test_what_is_no_list_of_members_is_refused(text, match):
    with pytest.raises(UsageError, match=match) as caught:
        parse_members(text)
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


def test_endpoints_that_only_this_machine_can_reach():
    assert is_only_local("localhost:1,http://127.0.0.1:2,[::1]:3")
    assert not any(map(is_only_local, ("localhost:1,h2:1", "", "/a/file", "unix:///tmp/s")))


@pytest.mark.parametrize(
    ("items", "parts"),
    [
        ({}, [0]),
        ({str(n): b"" for n in range(MOST_OPERATIONS)}, [MOST_OPERATIONS]),
        ({str(n): b"" for n in range(2 * MOST_OPERATIONS + 1)}, [MOST_OPERATIONS, MOST_OPERATIONS, 1]),
        ({str(n): b"x" * (MOST_BYTES // 3) for n in range(5)}, [2, 2, 1]),
        ({"big": b"x" * 2 * MOST_BYTES, "small": b""}, [1, 1]),  # what is too big for etcd is for etcd to say
    ],
)
def test_writes_are_split_into_as_few_transactions_as_the_limits_allow_in_order(items, parts):
    made = [*Space("/p", "run").puts(items, 1)]
    assert [len(operations) for _, operations in made] == parts
    assert [name for names, _ in made for name in names] == list(items)
    assert sum(len(part) for part in Space("/p", "run").deletes([*items, *items])) == len(items), "each key once"


def test_runs_whose_names_begin_alike_share_nothing():
    paths = [Space("/p/", run).path for run in ("a", "a/k", "a/", "a%2F", "ab", "")]
    assert paths[:2] == ["/p/a/", "/p/a%2Fk/"]
    for one in paths:
        assert [other for other in paths if other.startswith(one)] == [one]
    leases = {Space("/p", "a").run_lease, Space("/p", "b").run_lease, Space("/q", "a").run_lease}
    assert len(leases) == 3
    assert all(0 < lease < 1 << 63 for lease in leases)


def test_keys_of_strangers_that_are_not_text_are_left_out(caplog):
    space = Space("/rdzv", "run")
    pairs = [{"key": space.full("") + name, "value": b"v", "mod_revision": 7} for name in (b"members/etcd \x94", b"a")]
    with caplog.at_level(logging.WARNING):
        assert space.held(rpc.RangeResponse(kvs=pairs)) == [KeyValue("a", b"v", 7)]
        told = rpc.WatchResponse(events=[{"kv": pair} for pair in pairs])
        assert list(space.events(told)) == [Event("a", b"v", 7)]
    assert r"members/etcd \x94" in caplog.text


def security_of(endpoint: str, options: dict[str, str]) -> EtcdSecurity:
    request = Request("etcd", "run", endpoint, 1, 2, nproc_per_node=1, options=EtcdOptions(**options))
    return validate(request)[1]


@pytest.fixture(scope="module")
def pem(tmp_path_factory) -> str:
    """An authority's certificate, and in the same file a certificate with its key."""
    authority = trustme.CA()
    path: Path = tmp_path_factory.mktemp("pem") / "some.pem"
    own = authority.issue_cert("localhost")
    path.write_bytes(b"".join(blob.bytes() for blob in (own.private_key_pem, *own.cert_chain_pems, authority.cert_pem)))
    return str(path)


@pytest.mark.parametrize(
    ("endpoint", "names", "tls"),
    [
        ("h1", "", False),
        ("https://h1", "", True),
        ("h1", "protocol", True),
        ("h1", "cacert", True),
        ("h1", "cert key", True),
    ],
)
def test_plain_unless_tls_is_asked_for(pem, endpoint, names, tls):
    given = {name: "https" if name == "protocol" else pem for name in names.split()}
    assert security_of(endpoint, given).tls is tls


@pytest.mark.parametrize(
    ("endpoint", "options", "match"),
    [
        ("https://h1", {"protocol": "http"}, "contradicts"),
        ("http://h1", {"cacert": "PEM"}, "http was asked for"),
        ("h1", {"cert": "PEM", "key": "LOCKED"}, "are not a certificate and its key"),  # instead of asking for it
    ],
)
def test_contradictions_are_refused(pem, tmp_path, endpoint, options, match):
    locked = tmp_path / "key"
    plain = load_pem_private_key(Path(pem).read_bytes(), None)
    locked.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    files = {"PEM": pem, "LOCKED": str(locked)}
    with pytest.raises(UsageError, match=match) as caught:
        security_of(endpoint, {name: files.get(value, value) for name, value in options.items()})
    assert caught.value.remedy


@pytest.mark.parametrize(("mode", "warned"), [(0o640, False), (0o644, True), (0o604, True)])
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
    assert [f"={path} can be read by every user" in text for path, text in zip((file, key), said, strict=False)] == (
        [True, True] if warned else []
    )
    assert len(said) == 2 * warned
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
