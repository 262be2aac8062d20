"""What is wrong with a command line for etcd, or with etcd: one message that names it, and what to do next."""

from __future__ import annotations

import json
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

pytestmark = pytest.mark.thorough

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
    assert all(f"127.0.0.1:{port}: " in message for port in ports), message
    assert f"{old}: it is etcd 2.3.8" in message


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
    assert all(each in message for each in (str(secured.endpoints[0]), stranger, "cacert")), message


def test_plain_to_an_etcd_that_speaks_tls(commands: Commands, secured: etcd_kit.Cluster) -> None:
    endpoint = str(secured.endpoints[0])
    message = commands.refused(endpoint, conf="join_timeout=60", code=68)
    assert all(each in message for each in (endpoint, "https://")), message


@pytest.mark.parametrize(
    ("login", "said"),
    [
        (f"{USERS.user}:wrong-password", [f"'{USERS.user}'", "credentials"]),
        ("", ["RDZV_ETCD_USER"]),
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
    assert all(each in message for each in (f"'{USERS.user}'", "/others/mine/")), message


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
