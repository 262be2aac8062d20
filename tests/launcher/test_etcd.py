"""Jobs at a real etcd: variables, and what etcd refuses.

Sessions at an etcd are in tests/etcd, rendezvous and launches in the conformance suite.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from kits.etcd import etcd_kit
from kits.etcd.etcd_kit import Tls, Users
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round
from kits.launcher.harness import AgentProcess, error_of

from rdzv_plugins.errors import AccessRefused, EndpointUnreachable
from rdzv_plugins.testing.launched import outputs

pytestmark = pytest.mark.thorough


@pytest.fixture
def backend() -> str:
    return "etcd"


def environment(agent: AgentProcess) -> dict[str, str]:
    """Of its worker."""
    assert agent.wait() == 0, agent.text
    (report,) = agent.reports()
    return {str(name): str(value) for name, value in report.items()}


def test_what_the_agent_needs_for_etcd_does_not_reach_the_workers(meeting: EtcdMeeting) -> None:
    """protobuf is slow in the mode that the agent needs; gRPC's settings are the user's; the login is the agent's."""
    meeting.warm = False  # all variables are there when the command starts
    static = environment(meeting.run("environ.py"))
    job = Job(meeting, 1, script="environ.py", args=("any",))
    by_etcd = environment(job.node())
    own = {"RDZV_ROUND"}
    assert by_etcd.keys() == static.keys() | own
    given = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "upb", "GRPC_VERBOSITY": "info", "GRPC_ENABLE_FORK_SUPPORT": "1"}
    told = environment(job.node(**given, RDZV_ETCD_USER="node", RDZV_ETCD_PASSWORD="a secret"))
    assert {name: told[name] for name in given} == given
    assert told.keys() == static.keys() | own | given.keys()


def test_tls_and_logins(tmp_path: Path) -> None:
    """Those that are right make a job; each that is wrong is refused by name, with the code of its class."""
    users = Users(prefix="/mine")
    tls, stranger = Tls(tmp_path / "tls"), Tls(tmp_path / "stranger", by="theirs").cacert
    files = {name: tmp_path / name for name in ("known", "wrong")}
    files["known"].write_text(f"{users.user}:{users.password}\n")
    files["wrong"].write_text(f"{users.user}:wrong-password\n")
    right = {"cacert": tls.cacert, "credentials": files["known"], "prefix": users.prefix, "join_timeout": 60}
    unreachable, refused = EndpointUnreachable.exit_code, AccessRefused.exit_code

    with etcd_kit.etcd(tmp_path, tls=tls, users=users) as etcd, closing(EtcdMeeting(tmp_path, etcd)) as meeting:

        def node(rank: int, settings: dict[str, object], **env: str) -> AgentProcess:
            conf = ",".join(f"{name}={value}" for name, value in settings.items() if value)
            return Job(meeting, 2, script="says.py", conf=conf).node(rank, **env)

        endpoint = str(etcd.endpoints[0])
        for wrong, code, named in (
            ({"cacert": stranger}, unreachable, (endpoint, stranger, "cacert")),
            ({"credentials": files["wrong"]}, refused, (f"'{users.user}'", "credentials")),
            ({"credentials": ""}, refused, ("RDZV_ETCD_USER",)),
            ({"prefix": "/others"}, refused, (f"'{users.user}'", "/others/")),
        ):
            message = error_of(node(0, right | wrong), code)
            assert all(each in message for each in named), message

        login = {"RDZV_ETCD_USER": users.user, "RDZV_ETCD_PASSWORD": users.password}
        nodes = [node(0, right), node(1, right | {"credentials": ""}, **login)]
        in_one_round(*nodes)
        assert any(key.startswith(f"{users.prefix}/{meeting.run_id}/") for key in etcd.keys(users.prefix))
        (meeting.directory / f"stop-{meeting.run_id}").touch()
        assert [each.wait() for each in nodes] == [0, 0], outputs(nodes)
        assert etcd.keys(f"{users.prefix}/{meeting.run_id}") == {}
        assert not any(secret in each.text for each in meeting.agents for secret in (users.password, "wrong-password"))
