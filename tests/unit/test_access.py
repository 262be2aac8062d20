"""Token and certificates before anything starts: where they come from, what is none, what they ask of the options."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits.wire.tls_kit import Issued

from rdzv_plugins.elastic.node_session import settings_of
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import SettingsDiffer, UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.kvstore.native.server import CertificateReloader, StoreServer
from rdzv_plugins.options import WorkerStoreOptions
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import prepare, with_options
from rdzv_plugins.rounds.settings_check import compare
from rdzv_plugins.rounds.worker_stores import WorkerStores
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.security import job_token
from rdzv_plugins.security.certificates import certificates_of
from rdzv_plugins.security.job_token import JobToken, accepted_tokens, token_of

ONE, TWO = "0123456789abcdef-one", "0123456789abcdef-two"
REQUEST = Request("parallel", "run", "127.0.0.1:1", min_nodes=2, max_nodes=2, nproc_per_node=1)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of each test alone: what was taken out of it is forgotten."""
    SYSTEM.forget(job_token.Environment)
    for name in (job_token.VARIABLE, job_token.FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    yield
    os.environ.pop(job_token.VARIABLE, None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{ONE}\n")
    return path


def asking(**conf: object) -> Request:
    return dataclasses.replace(REQUEST, conf={name: str(value) for name, value in conf.items()})


def known(request: Request) -> JobToken:
    token = token_of(request)
    assert token is not None
    return token


def refused(ask: Callable[[], object], words: str) -> UsageError:
    """The refusal, which says what to do and shows no token."""
    with pytest.raises(UsageError, match=words) as caught:
        ask()
    assert caught.value.remedy
    assert ONE not in str(caught.value) + caught.value.remedy
    return caught.value


def test_where_it_comes_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert token_of(asking()) is None
    by_file = known(asking(token_file=file))
    monkeypatch.setenv("RDZV_TOKEN_FILE", str(file))
    assert token_of(asking()) == by_file
    monkeypatch.setenv("RDZV_TOKEN", ONE)
    assert token_of(asking(token_file=file)) == by_file, "what is written on the command line wins"
    refused(lambda: token_of(asking()), "RDZV_TOKEN and RDZV_TOKEN_FILE are both set")
    monkeypatch.delenv("RDZV_TOKEN_FILE")
    assert token_of(asking()) == by_file
    assert "RDZV_TOKEN" not in os.environ, "workers inherit it"
    assert token_of(asking()) == by_file, "it is known from then on"
    file.write_text(f"# the new one first\n\n{TWO}\n{ONE}\n")
    two = known(asking(token_file=file))
    assert two.keys[1:] == by_file.keys
    assert two.keys[0] not in by_file.keys


def test_no_text_shows_it(file: Path) -> None:
    token = known(asking(token_file=file))
    shown = repr(token) + repr(token.accepted("run")) + str(token)
    for secret in (ONE, token.keys[0].hex(), repr(token.keys[0])):
        assert secret not in shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# only a comment\n", "holds no token"),
        ("short\n", "has 5 characters"),
        ("x" * 1025, "has 1025 characters"),
        (f"{ONE}\n" * 60000, "is larger than 1048576 bytes"),
        (f"{ONE} {TWO}\n", "must hold one token, or two"),
        (f"{ONE}\n{TWO}\n{ONE}\n", "must hold one token, or two"),
        ("t\u00f6ken-t\u00f6ken-t\u00f6ken", "another invalid character"),
        (f"{ONE}\r{TWO}", "must hold one token"),
        ("hmac:0123456789abcdef", "is not a valid key"),
    ],
)
def test_what_is_no_token(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    refused(lambda: token_of(asking(token_file=file)), words)


def test_what_is_no_token_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, words in (("", "is set but empty"), (f"{ONE}\n", "line break"), ("a b" * 9, "must hold one token")):
        monkeypatch.setenv("RDZV_TOKEN", text)
        refused(lambda: token_of(asking()), words)


def test_files_that_cannot_be_read(file: Path, tmp_path: Path) -> None:
    for mode in (0o604, 0o602, 0o644):
        file.chmod(mode)
        error = refused(lambda: token_of(asking(token_file=file)), f"every user of this machine .mode {mode:04o}")
        assert "chmod 600" in error.remedy
    file.chmod(0o640)
    assert known(asking(token_file=file)), "its group is how a user is given one"
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("none", "no such file"), (".", "is not a file|is a directory"), ("pipe", "is not a file")):
        refused(lambda: token_of(asking(token_file=tmp_path / name)), words)  # noqa: B023


def test_tokens_of_a_service(file: Path) -> None:
    key = accepted_tokens(str(file))
    assert key is not None
    file.write_text(f"one {ONE} team-*\nall hmac:{key[0].key.hex()} *\n{TWO}\n")
    found = accepted_tokens(str(file))
    assert found is not None
    told = [(each.name, each.runs, each.whole) for each in found]
    assert told == [("one", "team-*", False), ("all", "*", True), ("", "*", True)]
    assert found[0].key == found[1].key == key[0].key != found[2].key
    for wrong, words in ((f"name {ONE}\n", "has 2 words"), (f"{TWO}\n{ONE} name team-*\n", "token 2 has 4 char")):
        file.write_text(wrong)
        refused(lambda: accepted_tokens(str(file)), words)  # whichever of the words it is


def prepared(backend: str, nodes: int = 2, **conf: object) -> Request:
    entry = PluginHost.load().catalog.find(backend)
    request = dataclasses.replace(asking(**conf), backend=backend, node_rank=0, min_nodes=nodes, max_nodes=nodes)
    return with_options(entry, request) if backend == "etcd" else prepare(entry, request)


def test_workers_have_proxies_then_and_a_backend_without_tokens_is_refused_one(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert prepared("parallel").options.store == "parallel"
    for backend in ("parallel", "tiered", "etcd"):
        assert prepared(backend, token_file=file).options.store == "tiered"
    for store in ("parallel", "torch"):
        refused(lambda: prepared("parallel", token_file=file, store=store), f"store={store} contradicts")  # noqa: B023
    refused(lambda: prepared("tiered", token_file=file, worker_transport="direct"), "worker_transport=direct contrad")
    os.environ["RDZV_TOKEN"] = ONE
    assert "rdzv backends" in refused(lambda: prepared("static"), "backend 'static' does not support tokens").remedy
    prepared("static", nodes=1)
    assert "does not support tokens" in caplog.text


def test_nodes_with_and_without_one_are_no_job(file: Path) -> None:
    """At an etcd both come as far as to read what the first node has written."""
    requests = prepared("tiered", token_file=file), prepared("tiered")
    one, other = (settings_of(each, "tiered", each.options, "host") for each in requests)
    for mine, theirs, words in ((one, other, "given, there not set"), (other, one, "not set, there given")):
        with pytest.raises(SettingsDiffer, match=f"RDZV_TOKEN or token_file: here {words}"):
            compare(mine, json.dumps(theirs).encode(), "there")


def test_that_a_job_is_open_is_said_once_and_only_where_others_can_reach_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def serve(host: str, nodes: str = "several", first: bool = True) -> None:
        stores = WorkerStores(WorkerStoreOptions(store="parallel", store_threads=1), timeout=60, shared_by=nodes)
        for _ in range(2):
            stores.open(host, "a test", first=first)
        stores.shutdown()

    for host in ("localhost", "127.0.0.1", "node0", "10.0.0.1"):
        serve(host)
    serve("node0", nodes="")
    serve("node0", first=False)
    monkeypatch.setenv("RDZV_ALLOW_OPEN", "1")
    serve("node0")
    assert ["this job is open" in message for message in caplog.messages] == [True, True]


SERVING = """
import signal, sys
from types import SimpleNamespace
from rdzv_launcher.tools import serve

serve._LOOK_S = 0.02
endings = {signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, endings)
accepted = serve.Accepted(sys.argv[1])
print("serves", flush=True)
server = SimpleNamespace(accept_tokens=lambda tokens: print("accepts", len(tokens), flush=True))
print(accepted.keep_fresh(server, endings, set()).name, flush=True)
"""


def test_a_service_that_is_stopped_and_continued_keeps_its_tokens_fresh(file: Path) -> None:
    """CPython's ``sigtimedwait`` returns rubbish if its time has passed when it is interrupted."""
    command = [sys.executable, "-c", SERVING, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serving:
        assert serving.stdout is not None
        try:
            assert serving.stdout.readline() == "serves\n"
            for _ in range(5):
                serving.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, serving.pid, os.WSTOPPED)
                time.sleep(0.05)  # the time of a look passes meanwhile
                serving.send_signal(signal.SIGCONT)
                os.waitid(os.P_PID, serving.pid, os.WCONTINUED)
            file.write_text(f"{ONE}\n{TWO}\n")
            assert serving.stdout.readline() == "accepts 2\n"
            serving.send_signal(signal.SIGTERM)
            assert serving.stdout.readline() == "SIGTERM\n"
            assert serving.wait(30) == 0
        finally:
            serving.kill()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Issued(tmp_path_factory.mktemp("ours"))


def conf_of(ours: Issued, *names: str) -> dict[str, object]:
    return {name: getattr(ours, name) for name in names or ("cacert", "cert", "key")}


def test_what_a_node_needs_and_with_tls_workers_have_proxies(ours: Issued) -> None:
    assert prepared("parallel", **conf_of(ours)).options.store == "tiered"
    assert prepared("parallel", nodes=1, **conf_of(ours), store="parallel").options.store == "parallel"
    for conf, words in (
        (conf_of(ours, "cacert", "key"), "key given without cert"),
        (conf_of(ours, "cacert"), "cacert given without cert and key"),
        (conf_of(ours) | {"store": "parallel"}, "store=parallel contradicts TLS"),
        (conf_of(ours) | {"store": "torch"}, "store=torch contradicts TLS"),
        (conf_of(ours) | {"worker_transport": "direct"}, "worker_transport=direct contradicts TLS"),
    ):
        refused(lambda: prepared("parallel", **conf), words)  # noqa: B023


def test_of_etcd_they_are_for_etcd_alone(ours: Issued) -> None:
    assert certificates_of(prepared("parallel", **conf_of(ours))) == ours.files
    assert certificates_of(asking(**conf_of(ours))) == ours.files
    assert certificates_of(prepared("parallel")) is None
    assert certificates_of(prepared("etcd", **conf_of(ours))) is None


def test_the_context_is_that_of_the_files_now(ours: Issued, tmp_path: Path) -> None:
    mine = Issued(tmp_path / "mine")
    files = mine.files
    first = files.context()
    assert files.context() is first
    assert first.minimum_version is ssl.TLSVersion.TLSv1_3
    assert first.check_hostname
    assert not files.within_one_process().context().check_hostname
    mine.issue()
    second = files.context()
    assert second is not first
    fitted = files.fitting().texts
    assert fitted == files.texts()
    mine.cert.write_text("it is being written")
    assert files.context() is second
    assert files.fitting().texts == fitted != files.texts()
    assert mine.files.context() is second  # one for the whole process
    never = Issued(tmp_path / "never")
    never.cert.write_text("nothing")
    with pytest.raises(UsageError):
        never.files.context()


def test_what_begins_while_files_are_replaced_has_the_last_that_fitted(tmp_path: Path) -> None:
    """A node that has served nothing yet, for one, which has dialled the service with them."""
    mine = Issued(tmp_path / "mine")
    first = mine.cert.read_bytes()
    mine.files.check()
    mine.issue()
    new = mine.cert.read_bytes()
    mine.cert.write_bytes(first)  # the new key is there, and its certificate is not
    assert mine.files.fitting().texts.cert == first
    assert not mine.files.within_one_process().context().check_hostname
    renewed: list[bytes] = []
    with StoreServer("127.0.0.1", tls=mine.files) as server:
        assert ask_statistics(Endpoint("127.0.0.1", server.port), 60, tls=mine.files)["refused"] == {}
        mine.cert.write_bytes(new)
        assert mine.files.fitting().texts.cert == new
        assert ask_statistics(Endpoint("127.0.0.1", server.port), 60, tls=mine.files)["refused"] == {}

    begun_with = mine.files.fitting().stamp
    mine.issue()  # while the server begins
    renewing = CertificateReloader(mine.files, begun_with, lambda texts: renewed.append(texts.cert), SYSTEM)
    renewing.look()
    renewing.close()
    assert renewed == [mine.cert.read_bytes()]
