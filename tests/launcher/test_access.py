"""Jobs with a token and under TLS, by real agents: who belongs to them works as ever, and who does not is told why."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, outputs, parallel_only
from kits.launcher.harness import Agent
from kits.launcher.tiered_kit import root_of
from kits.wire import wire_client as wire
from kits.wire.other_user import NOBODY, asked
from kits.wire.tls_kit import Issued

from rdzv_plugins.errors import AccessRefused

TOKEN, OTHER, THIRD = ("0123456789abcdef" + each * 16 for each in "mox")
REFUSED = AccessRefused.exit_code


def status(meeting: Meeting, port: int, conf: str = "", **env: str) -> int:
    """The exit code of ``rdzv status`` of a port: a process of its own, which would remember its token."""
    asks = meeting.start(["rdzv", "status", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={conf}"], **env)
    return asks.wait()


def written(path: Path, text: str) -> Path:
    """A file that is there at once as a whole, for this user alone."""
    part = path.with_suffix(".part")
    part.touch(0o600)
    part.write_text(text)
    part.rename(path)
    return path


@parallel_only  # etcd knows its users by other means
def test_a_job_under_tls_is_for_who_knows_its_token(meeting: Meeting, tmp_path: Path) -> None:
    ours, theirs = Issued(tmp_path / "ours"), Issued(tmp_path / "theirs", by="theirs")
    file, stop = written(tmp_path / "token", f"{TOKEN}\n"), tmp_path / "stop"
    conf = "last_call_timeout=0,linger=30,ttl=60"
    job = Job(meeting, "2:3", script="holds_on.py", args=("wait", stop, 0), conf=conf, flags=["-v"])
    first = job.node(conf=ours.conf, RDZV_TOKEN=TOKEN)
    meeting.wait_listening()
    nodes = [first, job.node(conf=f"{ours.conf},token_file={file}")]
    for node in nodes:
        eventually(node.reports, lambda: outputs(nodes))
        node.wait_for("this node's proxy is at")
    store = root_of(nodes).port

    plain, other = job.node(RDZV_TOKEN=TOKEN), job.node(conf=theirs.conf, RDZV_TOKEN=TOKEN)
    assert [plain.wait(), other.wait()] == [REFUSED] * 2, outputs([plain, other])
    first.wait_for("no TLS|certificate of another authority")  # there is one line in a second
    wrong, none = job.node(conf=ours.conf, RDZV_TOKEN=OTHER), job.node(conf=ours.conf)
    assert [wrong.wait(), none.wait()] == [REFUSED] * 2, outputs([wrong, none])

    def is_told() -> bool:  # there is one line in a second, and another may have been first
        assert job.node(conf=ours.conf).wait() == REFUSED
        return re.search("(no|wrong) token", first.text) is not None

    eventually(is_told, lambda: outputs(nodes))

    ours.issue()  # while the job runs
    for node in nodes:
        node.wait_for("was read again")
    for port in (meeting.port, store):
        with closing(wire.Raw(port, validated=False)) as stranger:
            stranger.send(wire.validate() + wire.set_(b"key", b"value"))
            assert stranger.until_close() == b""
        assert status(meeting, port, RDZV_TOKEN=TOKEN) == status(meeting, port, ours.conf) == REFUSED
        assert status(meeting, port, ours.conf, RDZV_TOKEN_FILE=str(file)) == 0
    for report in (each for node in nodes for each in node.reports()):
        with closing(wire.Raw(report["MASTER_PORT"])) as worker:  # of this user: plain, within the machine
            assert worker.fence() == b""
        if os.getuid() == 0:
            answer = asked(("127.0.0.1", report["MASTER_PORT"]), NOBODY)
            assert answer in (b"", "ConnectionResetError", "BrokenPipeError")

    for worker_pid in (pid for node in nodes for pid in job.workers(node)):
        assert TOKEN.encode() not in Path(f"/proc/{worker_pid}/environ").read_bytes()
    assert all(TOKEN not in command for command in meeting.processes().values())
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert all(TOKEN not in agent.text for agent in meeting.agents)


def ran(meeting: Meeting, run: str, conf: str = "", **env: str) -> Agent:
    """A job of one node that has ended."""
    agent = Job(meeting, 1, script="environ.py", run_id=run, args=("no arguments",), conf=conf).node(**env)
    agent.wait()
    return agent


@pytest.mark.thorough
@parallel_only
def test_a_service_has_tokens_for_runs_of_their_own_and_changes_them(meeting: Meeting, tmp_path: Path) -> None:
    file = written(tmp_path / "tokens", f"team {TOKEN} team-*\nall {OTHER} *\n")
    serve = meeting.start(["rdzv", "serve", f"--rdzv-endpoint={meeting.endpoint}", f"--rdzv-conf=token_file={file}"])
    serve.wait_for("serving a store at")
    assert ran(meeting, "team-a", RDZV_TOKEN=TOKEN).wait() == 0, meeting.agents[-1].text
    assert ran(meeting, "team-c", "store=parallel", RDZV_TOKEN=TOKEN).wait() == 0, meeting.agents[-1].text
    assert "'else'" in ran(meeting, "else", RDZV_TOKEN=TOKEN).text
    written(file, f"team {THIRD} team-*\nall {OTHER} *\nnobody\n")
    serve.wait_for("the tokens stay as they were")
    written(file, f"team {THIRD} team-*\nall {OTHER} *\n")
    serve.wait_for(r"has changed: 2 token\(s\) are accepted from now on")
    assert ran(meeting, "team-b", RDZV_TOKEN=THIRD).wait() == 0, meeting.agents[-1].text
    assert ran(meeting, "team-a", RDZV_TOKEN=TOKEN).wait() == REFUSED, meeting.agents[-1].text
    assert status(meeting, meeting.port, RDZV_TOKEN=OTHER) == 0
    assert status(meeting, meeting.port, RDZV_TOKEN=THIRD) == status(meeting, meeting.port) == REFUSED
    assert not any(each in agent.text for agent in meeting.agents for each in (TOKEN, OTHER, THIRD))


@pytest.mark.thorough
@parallel_only
def test_a_service_under_tls_reads_its_certificates_again(meeting: Meeting, tmp_path: Path) -> None:
    ours = Issued(tmp_path / "ours")
    serve = meeting.start(["rdzv", "serve", f"--rdzv-endpoint={meeting.endpoint}", f"--rdzv-conf={ours.conf}"])
    serve.wait_for("serving a store at .*, under TLS")
    serve.process.send_signal(signal.SIGHUP)  # without it nothing has changed
    serve.wait_for("was read again")
    assert ran(meeting, "run", ours.conf).wait() == 0, meeting.agents[-1].text
    assert status(meeting, meeting.port, ours.conf) == 0
    assert status(meeting, meeting.port, f"cacert={ours.cacert}") == REFUSED
    serve.process.send_signal(signal.SIGTERM)
    assert serve.wait() == 0, serve.text
