"""etcd by variables instead of flags, as job controllers set them; what reaches the workers; plain torchrun."""

from __future__ import annotations

import pytest
from kits.launcher.elastic_kit import EtcdMeeting, Job, in_one_round, outputs
from kits.launcher.harness import Agent


@pytest.fixture
def backend() -> str:
    return "etcd"


@pytest.fixture(autouse=True)
def commands(meeting: EtcdMeeting) -> None:
    """All variables are there when the command starts."""
    meeting.warm = False


def environment(agent: Agent) -> dict[str, str]:
    """Of its worker."""
    assert agent.wait() == 0, agent.text
    (report,) = agent.reports()
    return {str(name): str(value) for name, value in report.items()}


@pytest.mark.thorough
def test_what_the_agent_needs_for_etcd_does_not_reach_the_workers(meeting: EtcdMeeting) -> None:
    """protobuf is slow in the mode that the agent needs; gRPC's settings are the user's; the login is the agent's."""
    static = environment(meeting.run("environ.py"))
    job = Job(meeting, 1, script="environ.py", args=("any",))
    by_etcd = environment(job.node())
    own = {"RDZV_ROUND"}
    assert by_etcd.keys() == static.keys() | own
    given = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "upb", "GRPC_VERBOSITY": "info", "GRPC_ENABLE_FORK_SUPPORT": "1"}
    told = environment(job.node(**given, RDZV_ETCD_USER="node", RDZV_ETCD_PASSWORD="a secret"))
    assert {name: told[name] for name in given} == given
    assert told.keys() == static.keys() | own | given.keys()


@pytest.mark.thorough
def test_everything_by_variables(meeting: EtcdMeeting) -> None:
    """A job controller sets the address of its first node, too, which has nothing to do with etcd."""
    stop = meeting.directory / "stop"
    variables = {
        "PET_RDZV_ENDPOINT": meeting.endpoint,
        "PET_RDZV_ID": meeting.run_id,
        "PET_RDZV_CONF": "ttl=3,prefix=/by/variables",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "job-node-0-0.job",
        "PET_MASTER_PORT": "29500",
    }
    nodes = [
        meeting.start(
            ["rdzv-run", meeting.script("says.py"), stop, 0],
            **variables,
            PET_RDZV_BACKEND=backend,
            PET_NODE_RANK=str(rank),
        )
        for rank, backend in enumerate(["etcd", "rdzv-plugins.etcd"])  # the second name is plain torchrun's
    ]
    reports = in_one_round(*nodes)
    assert {report["MASTER_ADDR"] for report in reports} == {"127.0.0.1"}
    assert {report["TORCHELASTIC_RUN_ID"] for report in reports} == {meeting.run_id}
    assert meeting.etcd.keys(f"/by/variables/{meeting.run_id}/")
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)


def test_plain_torchrun(meeting: EtcdMeeting) -> None:
    """Its workers fail once: each round has a store of its own."""
    flags = ["--rdzv-backend=rdzv-plugins.etcd", f"--rdzv-endpoint={meeting.endpoint}", f"--rdzv-id={meeting.run_id}"]
    flags += ["--nnodes=2", "--max-restarts=1", f"--rdzv-conf={meeting.conf}"]
    nodes = [meeting.start(["torchrun", *flags, meeting.script("report.py"), "crash", 1, 3]) for _ in range(2)]
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    ports = [[report["MASTER_PORT"] for report in node.reports()] for node in nodes]
    assert ports[0] == ports[1]
    assert len(set(ports[0])) == 2
    assert meeting.held(meeting.run_id) == {}
