"""Options of etcd: its members, its keys in few transactions, TLS; no server is needed. Passwords: ``tests/kit``."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rdzv_plugins.backends.etcd import ACCOUNT, EtcdOptions, parse_members, validate
from rdzv_plugins.backends.etcd.api import rpc
from rdzv_plugins.backends.etcd.looks import Look, checks_of
from rdzv_plugins.backends.etcd.space import MOST_BYTES, MOST_OPERATIONS, Space
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.endpoints import Endpoint, is_only_local
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request, ServiceCheck
from rdzv_plugins.kit.security import Security


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


def security_of(endpoint: str, options: dict[str, str]) -> Security:
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
        ("h1", {"cert": "PEM", "key": "LOCKED"}, "do not work together"),  # instead of asking for it
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
        Security(tls=True, cacert=pem, cert=pem, key=str(key))
    said = [record.getMessage() for record in caplog.records]
    assert [f"={path} is readable by every user" in text for path, text in zip((file, key), said, strict=False)] == (
        [True, True] if warned else []
    )
    assert len(said) == 2 * warned
    assert "bob:secret" not in caplog.text


def test_credentials_are_read_again_and_kept_while_the_file_is_being_written(tmp_path):
    file = tmp_path / "etcd"
    login = Security(user="bob", password="old", credentials=str(file))
    for text, known in (("bob:new\n", ("bob", "new")), ("bo", ("bob", "old"))):
        file.write_text(text)
        assert ACCOUNT.login(login) == known
    file.unlink()
    assert ACCOUNT.login(login) == ("bob", "old")
    assert ACCOUNT.login(Security(user="ann", password="x")) == ("ann", "x")


GIB = 2**30


def look(endpoint: str = "h:1", *, members: int = 3, **changes: Any) -> Look:
    """What is seen of a member that is well, but for the changes; names in camel case are of its status."""
    host, _, port = endpoint.partition(":")
    header = {"cluster_id": changes.pop("cluster", 7), "member_id": int(port)}
    told = {"version": "3.5.9", "leader": 1, "dbSize": GIB, "dbSizeInUse": GIB // 2, "dbSizeQuota": 2 * GIB}
    told |= {name: changes.pop(name) for name in rpc.StatusResponse.DESCRIPTOR.fields_by_name if name in changes}
    well = {"answer_s": 0.001, "read_s": 0.002, "disk_s": 0.004, "clock_s": (-0.5, 0.6)} | changes
    listed = [_listed(number) for number in range(1, members + 1)]
    return Look(Endpoint(host, int(port)), status=rpc.StatusResponse(header=header, **told), listed=listed, **well)


def _listed(number: int) -> Any:
    urls = {"peerURLs": [f"http://h:9{number}"], "clientURLs": [f"http://h:{number}"]}
    return rpc.Member(ID=number, name=f"m{number}", **urls)


def check(name: str, *looks: Look) -> ServiceCheck:
    return {each.name: each for each in checks_of(looks)}[name]


def test_all_is_well() -> None:
    found = checks_of([look(f"h:{number}") for number in (1, 2, 3)])
    assert {each.verdict for each in found} == {"ok"}
    assert not any(each.remedy for each in found)
    assert len({each.name for each in found}) == len(found)
    assert [each.text.count(", leads;") for each in found if each.name.startswith("member ")] == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "says"),
    [
        ("member h:1", {"read_s": 0.3}, "warning", "in 300.0 ms what the others"),
        ("member h:1", {"read_problem": "request timed out"}, "wrong", "have to agree to: request timed out"),
        ("member h:1", {"version": "", "refusal": "permission denied"}, "skipped", "not report its status: permission"),
        ("member h:1", {"isLearner": True}, "wrong", "a learner"),
        ("alarms", {"version": "3.3.27"}, "skipped", "etcd 3.3.27 does not tell"),
        ("alarm NOSPACE", {"errors": ["memberID:1  alarm:NOSPACE"]}, "wrong", "raised at h:1: etcd accepts no more"),
        (
            "database of h:1",
            {"dbSize": 1740 << 20},
            "warning",
            "1740.0 MiB of 2048.0 MiB, 512.0 MiB of it in use",
        ),
        ("disk of h:1", {"disk_s": float("inf")}, "warning", "takes longer than 100.0 ms, longer than it counts"),
        ("clock of h:1", {"clock_s": (29.5, 30.6)}, "warning", "30 s ahead of this machine's"),
    ],
)
def test_what_is_not_well(name: str, changes: dict[str, Any], verdict: str, says: str) -> None:
    found = check(name, look(**changes))
    assert (found.verdict, says in found.text) == (verdict, True), found
    assert bool(found.remedy) == (verdict in ("warning", "wrong"))


def test_what_is_done_about_a_full_database_depends_on_what_it_holds() -> None:
    size = 1740 << 20
    assert "defrag gives back" in check("database of h:1", look(dbSize=size)).remedy
    assert "etcdctl compact" in check("database of h:1", look(dbSize=size, dbSizeInUse=size)).remedy


def test_members_of_several_clusters_and_of_few() -> None:
    assert "h:1 and g:1 are members of different clusters" in check("members", look(), look("g:1", cluster=8)).text
    assert check("members", look(members=1)).verdict == "ok"
    assert check("members", look(members=2)).verdict == "warning"
    assert "2 may be lost" in check("members", look(members=5)).text
    assert check("members", look(members=0)).verdict == "skipped"


def test_members_that_an_endpoint_leaves_out() -> None:
    assert "http://h:2, http://h:3" in check("endpoint", look()).text
    for other in ("a-balancer:1", "127.0.0.1:1"):  # what is behind it nobody knows
        assert "endpoint" not in {each.name for each in checks_of([look(other)])}


MODE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
NAMES = (MODE, "GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT")


def python(code: str, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | env, check=True, capture_output=True, text=True, timeout=180
    ).stdout


LOAD = "from rdzv_plugins.backends.etcd.api import rpc; print(rpc.RangeRequest(key=b'k').key)"
SHOW = f"import os; print({{name: os.environ[name] for name in {NAMES} if name in os.environ}})"


@pytest.mark.parametrize("mode", ["", "upb", "python"])
def test_what_is_set_for_the_import_is_put_back(mode):
    set_before = {MODE: mode, "GRPC_VERBOSITY": "ERROR"} if mode else {}
    assert python(f"{LOAD}\n{SHOW}", **set_before) == f"b'k'\n{set_before}\n"


def test_without_the_extra_the_message_says_how_to_install_it(tmp_path):
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')")
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_launcher", "--rdzv-backend=etcd", "--rdzv-endpoint=h", "--rdzv-id=job", __file__],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 69, done.stderr
    assert "backend 'etcd' needs module 'grpc', which is not installed" in done.stderr
    assert "pip install 'rdzv-plugins[etcd]'" in done.stderr
