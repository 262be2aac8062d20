"""Jobs under TLS and with a token, by real agents whose workers use gloo; and who is not let in, told by both sides."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest
from kits.launcher.elastic_kit import Job, Meeting, outputs, parallel_only
from kits.launcher.harness import Agent
from kits.launcher.tiered_kit import root_of
from kits.wire import wire_client as wire
from kits.wire.tls_kit import Issued

TOKEN = "0123456789abcdef-under-tls"
REFUSED = 77  # AccessRefused


def status(meeting: Meeting, port: int, conf: str = "", **env: str) -> Agent:
    return meeting.start(["rdzv", "status", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={conf}"], **env)


@parallel_only
def test_a_job_under_tls_with_a_token(meeting: Meeting, tmp_path: Path) -> None:
    ours, theirs, stop = Issued(tmp_path / "ours"), Issued(tmp_path / "theirs", by="theirs"), tmp_path / "stop"
    job = Job(
        meeting, "2:3", script="report.py", args=("wait", stop), conf="last_call_timeout=0,linger=30", flags=["-v"]
    )
    first = job.node(conf=ours.conf, RDZV_TOKEN=TOKEN)
    meeting.wait_listening()
    nodes = [first, job.node(conf=ours.conf, RDZV_TOKEN=TOKEN)]
    for node in nodes:
        node.wait_for(r'"SUM": 1\.0')  # of the ranks, over gloo
        node.wait_for("this node's proxy is at")
    store = root_of(nodes).port

    plain, other = job.node(RDZV_TOKEN=TOKEN), job.node(conf=theirs.conf, RDZV_TOKEN=TOKEN)
    assert [plain.wait(), other.wait()] == [REFUSED] * 2, outputs([plain, other])
    first.wait_for("no TLS|certificate of another authority")  # there is one line in a second
    wrong_token = job.node(conf=ours.conf, RDZV_TOKEN=f"{TOKEN}-other")
    assert wrong_token.wait() == REFUSED

    ours.issue()  # while the job runs
    for node in nodes:
        node.wait_for("was read again")
    for port in (meeting.port, store):
        with closing(wire.Raw(port, validated=False)) as stranger:
            stranger.send(wire.validate() + wire.set_(b"key", b"value"))
            assert stranger.until_close() == b""
        assert status(meeting, port, RDZV_TOKEN=TOKEN).wait() == REFUSED
        known = status(meeting, port, ours.conf, RDZV_TOKEN=TOKEN)
        assert known.wait() == 0, known.text
    for report in (each for node in nodes for each in node.reports()):
        with closing(wire.Raw(report["MASTER_PORT"])) as worker:  # of this user: plain, within the machine
            assert worker.fence() == b""
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)


@pytest.mark.thorough
@parallel_only
def test_a_service_under_tls_reads_its_certificates_again(meeting: Meeting, tmp_path: Path) -> None:
    ours = Issued(tmp_path / "ours")
    serve = meeting.start(["rdzv", "serve", f"--rdzv-endpoint={meeting.endpoint}", f"--rdzv-conf={ours.conf}"])
    serve.wait_for("serving a store at .*, under TLS")
    serve.process.send_signal(signal.SIGHUP)  # without it nothing has changed
    serve.wait_for("was read again")
    alone = Job(meeting, 1, script="environ.py", run_id="run", args=("no arguments",), conf=ours.conf).node()
    assert alone.wait() == 0, alone.text
    assert status(meeting, meeting.port, ours.conf).wait() == 0
    assert status(meeting, meeting.port, f"cacert={ours.cacert}").wait() == REFUSED
    serve.process.send_signal(signal.SIGTERM)
    assert serve.wait() == 0, serve.text
