"""Jobs with a token, by real agents: who has it works as ever, and who has not is told why, on both sides."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, outputs, parallel_only
from kits.launcher.harness import Agent
from kits.launcher.tiered_kit import root_of
from kits.wire import wire_client as wire
from kits.wire.other_user import NOBODY, asked

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused
from rdzv_plugins.kvstore.native.framing import ask_statistics

TOKEN, OTHER, THIRD = ("0123456789abcdef" + each * 16 for each in "mox")
REFUSED = 77  # AccessRefused


def written(path: Path, text: str) -> Path:
    """A file that is there at once as a whole, for this user alone."""
    part = path.with_suffix(".part")
    part.touch(0o600)
    part.write_text(text)
    part.rename(path)
    return path


def status(meeting: Meeting, port: int, **env: str) -> Agent:
    return meeting.start(["rdzv", "status", f"--rdzv-endpoint=127.0.0.1:{port}"], **env)


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


@parallel_only  # etcd knows its users by other means
def test_a_job_is_for_who_knows_its_token(meeting: Meeting, tmp_path: Path) -> None:
    file, stop = written(tmp_path / "token", f"{TOKEN}\n"), tmp_path / "stop"
    job = Job(
        meeting,
        "2:3",
        script="holds_on.py",
        args=("wait", stop, 0),
        conf="last_call_timeout=0,linger=30,ttl=60",
        flags=["-v"],
    )
    first = job.node(RDZV_TOKEN=TOKEN)
    meeting.wait_listening()
    nodes = [first, job.node(conf=f"token_file={file}")]
    for node in nodes:
        eventually(node.reports, lambda: outputs(nodes))
        node.wait_for("this node's proxy is at")
    store = root_of(nodes).port

    wrong, none = job.node(RDZV_TOKEN=OTHER), job.node()
    assert [wrong.wait(), none.wait()] == [REFUSED] * 2, outputs([wrong, none])
    first.wait_for("(no|wrong) token")  # there is one line in a second
    for port in (meeting.port, store):
        with closing(wire.Raw(port, validated=False)) as stranger:
            stranger.send(wire.validate() + wire.set_(b"key", b"value"))
            assert stranger.until_close() == b""
        assert status(meeting, port).wait() == REFUSED
        known = status(meeting, port, RDZV_TOKEN_FILE=str(file))
        assert known.wait() == 0, known.text
    for report in (each for node in nodes for each in node.reports()):
        with closing(wire.Raw(report["MASTER_PORT"])) as worker:  # of this user
            assert worker.fence() == b""
        if os.getuid() == 0:
            assert asked(("127.0.0.1", report["MASTER_PORT"]), NOBODY) in (
                b"",
                "ConnectionResetError",
                "BrokenPipeError",
            )

    for node in nodes:
        for worker_pid in job.workers(node):
            assert TOKEN.encode() not in environment(worker_pid)
    assert all(TOKEN not in command for command in meeting.processes().values())
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert all(TOKEN not in agent.text for agent in meeting.agents)


@pytest.mark.thorough
@parallel_only
def test_a_service_has_tokens_for_runs_of_their_own_and_changes_them(meeting: Meeting, tmp_path: Path) -> None:
    file = written(tmp_path / "tokens", f"team {TOKEN} team-*\nall {OTHER} *\n")
    serve = meeting.start(["rdzv", "serve", f"--rdzv-endpoint={meeting.endpoint}", f"--rdzv-conf=token_file={file}"])
    serve.wait_for("serving a store at")

    def ran(run: str, token: str, conf: str = "") -> Agent:
        agent = Job(meeting, 1, script="environ.py", run_id=run, args=("no arguments",), conf=conf).node(
            RDZV_TOKEN=token
        )
        agent.wait()
        return agent

    assert ran("team-a", TOKEN).wait() == 0, meeting.agents[-1].text
    assert ran("team-c", TOKEN, conf="store=parallel").wait() == 0, meeting.agents[-1].text
    assert "'else'" in ran("else", TOKEN).text
    written(file, f"team {THIRD} team-*\nall {OTHER} *\nnobody\n")
    serve.wait_for("the tokens stay as they were")
    written(file, f"team {THIRD} team-*\nall {OTHER} *\n")
    serve.wait_for(r"has changed: 2 token\(s\) are accepted from now on")
    assert ran("team-b", THIRD).wait() == 0, meeting.agents[-1].text
    assert ran("team-a", TOKEN).wait() == REFUSED, meeting.agents[-1].text
    assert status(meeting, meeting.port, RDZV_TOKEN=OTHER).wait() == 0
    assert status(meeting, meeting.port, RDZV_TOKEN=THIRD).wait() == REFUSED
    with pytest.raises(AccessRefused):
        ask_statistics(Endpoint("127.0.0.1", meeting.port), 60)
    assert not any(each in agent.text for agent in meeting.agents for each in (TOKEN, OTHER, THIRD))
