"""What is wrong with a command line for etcd, or with etcd: one message that names it, and what to do next."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.etcd.etcd_kit import Tls, Users
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round
from kits.launcher.harness import WORKERS, Cluster, free_port, server

from rdzv_plugins.testing.agents.warm import AGENTS, LONGEST, agent_request, with_room
from rdzv_plugins.testing.forks.forks import Forks

USERS = Users(prefix="/mine")
KNOWN = f"{USERS.user}:{USERS.password}"


class Commands:
    """``rdzv-run`` to its end, in forks of a process that has imported torch already."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self._files = directory / "stdout", directory / "stderr"
        self._env = env
        self._forks = Forks(AGENTS, "light", with_room(env), LONGEST)

    def refused(self, endpoint: str, *flags: str, code: int, backend: str = "etcd", conf: str = "", **env: str) -> str:
        """The message, which has a next step; ``endpoint`` may be empty."""
        command = [f"--rdzv-backend={backend}", "--rdzv-id=mine", "--nnodes=2", f"--rdzv-conf={conf}"]
        command += [f"--rdzv-endpoint={endpoint}"] if endpoint else []
        for file in self._files:
            file.write_text("")
        command += [*flags, str(WORKERS / "environ.py")]
        request = agent_request("rdzv-run", command, self._env | env, *self._files)
        ended = self._forks.start(request, ["rdzv-run", *command]).wait(150)
        out, said = (file.read_text() for file in self._files)
        assert ended == code, said
        assert "Traceback" not in said
        assert out == "", "no worker was started"
        _, error, message = said.partition("rdzv-run: error: ")
        assert error, said
        assert message.count("\nrdzv-run: ") == 1, f"what to do next: {message}"
        return message

    def close(self) -> None:
        self._forks.close()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    directory = tmp_path_factory.mktemp("commands")
    with closing(Cluster(directory)) as cluster, closing(Commands(directory, cluster.env)) as commands:
        yield commands


@pytest.mark.parametrize(
    ("endpoint", "flags", "said"),
    [
        ("", (), ["where etcd is", "--rdzv-endpoint=HOST"]),
        ("", ("--nnodes=1",), ["where etcd is", "--rdzv-endpoint=HOST"]),
        ("", ("--master-addr=h1",), ["where etcd is", "--rdzv-endpoint=HOST"]),  # that is a node of the job
        ("h1:2379,h2:99999,h3", (), ["port 99999 is out of range"]),
        ("h1,h 2", (), ["'h 2'", "HOST:PORT"]),
        ("h1,ftp://h2", (), ["'ftp://h2'", "https://"]),
        ("http://h1,https://h2", (), ["mixes http:// and https://"]),
        ("h1:2379", ("--standalone", "--nnodes=1"), ["--standalone needs no etcd"]),
        ("h1:2379", ("--node-rank=2",), ["--node-rank=2 is out of range"]),
    ],
)
def test_command_line(commands: Commands, endpoint: str, flags: tuple[str, ...], said: list[str]) -> None:
    message = commands.refused(endpoint, *flags, conf="join_timeout=5", code=2)
    assert all(each in message for each in said), message


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("ca_cert=x", ["ca_cert", "cacert"]),
        ("credentials={directory}/none", ["credentials={directory}/none", "no such file"]),
        ("credentials={directory}", ["credentials={directory}", "directory"]),
        ("credentials={directory}/name-only", ["credentials={directory}/name-only", "user:password"]),
        ("cacert={directory}/none", ["cacert={directory}/none", "no such file"]),
        ("cacert={directory}/name-only", ["cacert={directory}/name-only", "PEM"]),
        ("cert={directory}/name-only", ["cert", "key"]),
        ("protocol=ftp", ["protocol", "https"]),
        ("ttl=1", ["ttl", "2"]),
    ],
)
def test_setting(commands: Commands, tmp_path: Path, conf: str, said: list[str]) -> None:
    directory = tmp_path
    (directory / "name-only").write_text("node\n")
    message = commands.refused("h1:2379", conf=f"join_timeout=5,{conf.format(directory=directory)}", code=2)
    assert all(each.format(directory=directory) in message for each in said), message


@pytest.mark.parametrize(("given", "missing"), [("USER", "PASSWORD"), ("PASSWORD", "USER")])
def test_half_of_a_login(commands: Commands, given: str, missing: str) -> None:
    message = commands.refused("h1:2379", code=2, **{f"RDZV_ETCD_{given}": "a secret"})
    assert "RDZV_ETCD_USER" in message
    assert "RDZV_ETCD_PASSWORD" in message
    assert "a secret" not in message


@pytest.mark.parametrize("endpoint", ["h1,http://node:pass-word@h2", "node:pass-word@h1"])
def test_login_in_the_endpoint_is_refused_and_not_repeated(commands: Commands, endpoint: str) -> None:
    message = commands.refused(endpoint, conf="join_timeout=5", code=2)
    assert "credentials=FILE" in message
    assert "pass-word" not in message


def test_the_old_name_says_why_there_is_no_v2(commands: Commands) -> None:
    message = commands.refused("h1:2379", backend="etcd-v2", code=69)
    assert "etcd 3.6" in message
    assert "--rdzv-backend=etcd" in message


@contextmanager
def only_v2() -> Iterator[str]:
    """What etcd 2.3 says of itself."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/version"
            body = (
                json.dumps({"etcdserver": "2.3.8", "etcdcluster": "2.3.0"}).encode() if known else b"404 page not found"
            )
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not on our stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def test_members_that_cannot_be_reached_are_named_one_by_one_with_the_reason(commands: Commands) -> None:
    ports = [free_port() for _ in range(4)]
    with ExitStack() as others:
        others.enter_context(server(ports[1], None))
        others.enter_context(server(ports[2], b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        others.enter_context(server(ports[3], b"SSH-2.0-OpenSSH_9.2\r\n"))
        old = others.enter_context(only_v2())
        endpoint = ",".join([*(f"127.0.0.1:{port}" for port in ports), old])
        message = commands.refused(endpoint, conf="join_timeout=12", code=68)
    assert f"127.0.0.1:{ports[0]}: connection refused" in message
    assert re.search(f"127.0.0.1:{ports[1]}: (it accepts connections, but does not answer|no answer yet)", message)
    assert f"127.0.0.1:{ports[2]}: something else than etcd" in message
    assert f"127.0.0.1:{ports[3]}: something else than etcd" in message
    assert f"{old}: it is etcd 2.3.8, which has only the v2 API" in message


@pytest.mark.parametrize("program", ["http", "etcd v2"])
def test_what_will_not_become_right_by_waiting_is_said_at_once(commands: Commands, program: str) -> None:
    with ExitStack() as others:
        if program == "http":
            endpoint = f"127.0.0.1:{(port := free_port())}"
            others.enter_context(server(port, b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        else:
            endpoint = others.enter_context(only_v2())
        message = commands.refused(endpoint, conf="join_timeout=60", code=68)
    assert message.startswith(f"etcd at {endpoint} cannot be used: {endpoint}: ")
    assert ("something else than etcd" if program == "http" else "it is etcd 2.3.8") in message


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[etcd_kit.Cluster]:
    """It speaks TLS and wants a password."""
    directory = tmp_path_factory.mktemp("secured")
    with etcd_kit.etcd(directory, tls=Tls(directory / "tls"), users=USERS) as cluster:
        yield cluster


@pytest.fixture
def files(secured: etcd_kit.Cluster, tmp_path: Path) -> dict[str, str]:
    """The right settings."""
    assert secured.tls
    (tmp_path / "known").write_text(f"{KNOWN}\n")
    right = {"cacert": secured.tls.cacert, "credentials": str(tmp_path / "known"), "prefix": USERS.prefix}
    return right | {"join_timeout": "60"}  # what cannot work is not tried for so long


def as_conf(settings: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in settings.items() if value)


def test_wrong_authority(commands: Commands, tmp_path: Path, secured: etcd_kit.Cluster, files: dict[str, str]) -> None:
    stranger = Tls(tmp_path / "stranger").cacert
    message = commands.refused(secured.endpoint, conf=as_conf(files | {"cacert": stranger}), code=68)
    assert f"cannot be used: {secured.endpoints[0]}: TLS: its certificate is refused" in message
    assert stranger in message
    assert "cacert=" in message


def test_no_client_certificate(commands: Commands, tmp_path: Path) -> None:
    tls = Tls(tmp_path / "tls", client_auth=True)
    with etcd_kit.etcd(tmp_path, tls=tls) as choosy:
        message = commands.refused(choosy.endpoint, conf=f"cacert={tls.cacert},join_timeout=60", code=68)
        assert f"cannot be used: {choosy.endpoints[0]}: TLS: it refuses this node" in message
        assert "cert=FILE,key=FILE" in message


def test_plain_to_an_etcd_that_speaks_tls(commands: Commands, secured: etcd_kit.Cluster) -> None:
    endpoint = str(secured.endpoints[0])
    message = commands.refused(endpoint, conf="join_timeout=60", code=68)
    assert f"cannot be used: {endpoint}: it speaks TLS" in message
    assert "https://" in message


def test_tls_to_an_etcd_that_does_not_speak_it(commands: Commands, one_etcd: etcd_kit.Cluster) -> None:
    endpoint = str(one_etcd.endpoints[0])
    message = commands.refused(f"https://{endpoint}", conf="join_timeout=60", code=68)
    assert f"cannot be used: {endpoint}: it does not speak TLS" in message


@pytest.mark.parametrize(
    ("login", "said"),
    [
        (f"{USERS.user}:wrong-password", ["password", f"'{USERS.user}'", "credentials"]),
        ("stranger:secret-word", ["password", "'stranger'", "credentials"]),
        ("", ["wants a user and a password", "RDZV_ETCD_USER"]),
    ],
)
def test_login(
    commands: Commands, tmp_path: Path, secured: etcd_kit.Cluster, files: dict[str, str], login: str, said: list[str]
) -> None:
    given = tmp_path / "given"
    given.write_text(login)
    message = commands.refused(
        secured.endpoint, conf=as_conf(files | {"credentials": str(given) if login else ""}), code=77
    )
    assert all(each in message for each in said), message
    assert not login or login.partition(":")[2] not in message


def test_user_who_may_not_write_there(commands: Commands, secured: etcd_kit.Cluster, files: dict[str, str]) -> None:
    message = commands.refused(secured.endpoint, conf=as_conf(files | {"prefix": "/others"}), code=77)
    assert f"'{USERS.user}'" in message
    assert "/others/mine/" in message
    assert "grant-permission" in message


@pytest.mark.parametrize("by", ["file", "environment"])
def test_login_and_tls_that_are_right(
    tmp_path: Path, secured: etcd_kit.Cluster, files: dict[str, str], by: str
) -> None:
    meeting = EtcdMeeting(tmp_path, secured)
    env = {"RDZV_ETCD_USER": USERS.user, "RDZV_ETCD_PASSWORD": USERS.password} if by == "environment" else {}
    job = Job(meeting, 2, script="says.py", conf=as_conf(files | ({"credentials": ""} if env else {})))
    try:
        nodes = [job.node(rank, flags=["-v"], **env) for rank in (0, 1)]
        in_one_round(*nodes)
        assert any(key.startswith(f"{USERS.prefix}/{job.run_id}/") for key in secured.keys(USERS.prefix))
        job.finish(*nodes)
        assert secured.keys(f"{USERS.prefix}/{job.run_id}") == {}
        assert not any(USERS.password in node.text for node in nodes)
    finally:
        meeting.close()
