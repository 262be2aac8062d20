"""The secrets of a job are nowhere but where the user has put them, whatever is said, shown, stored or passed on."""

from __future__ import annotations

import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from kits.launcher.elastic_kit import Job, Meeting, outputs, parallel_only
from kits.launcher.harness import free_port
from kits.wire.tls_kit import Issued

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import token_of
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

pytestmark = pytest.mark.thorough

OLD, NEW = (f"{which}-token-0123456789abcdef" for which in ("old", "new"))


@parallel_only
def test_a_secret_is_nowhere_but_where_it_was_put(meeting: Meeting, tmp_path: Path) -> None:
    """Tokens in the environment and in a file, and the private key of TLS; a worker fails, and a stranger has come."""
    tls, go_on, logs, lines = Issued(tmp_path / "tls"), tmp_path / "go-on", tmp_path / "logs", tmp_path / "timeline"
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"{NEW}\n{OLD}\n")  # as while it is changed
    secrets = [NEW, OLD, tls.key.read_text().splitlines()[1]]
    port, flags = free_port(), (f"--log-dir={logs}", "--tee=3", f"--timeline={lines}")
    job = Job(meeting, 2, script="report.py", args=("fail_after", go_on, 1, 5), conf=f"linger=30,{tls.conf}")
    first = job.node(conf=f"token_file={file}", flags=[*flags, f"--health-port={port}"])
    meeting.wait_listening()
    nodes = [first, job.node(flags=flags, RDZV_TOKEN=NEW)]
    stranger = job.node(RDZV_TOKEN=f"{NEW}-wrong")
    assert stranger.wait() == 77, stranger.text
    for node in nodes:
        node.wait_for(r'"SUM": 1\.0', 90)
    seen: dict[str, str] = {"the stranger's screen": stranger.text}

    def ask(*command: str, **env: str) -> None:
        asked = meeting.start(["rdzv", *command], **env)
        assert asked.wait() == 0, asked.text
        seen[" ".join(["rdzv", *command[:2]])] = asked.text

    where = (f"--rdzv-endpoint=127.0.0.1:{meeting.port}", f"--rdzv-conf={tls.conf}")
    for tool in ("status", "stacks", "top", "doctor"):
        for form in ("--once" if tool == "top" else "", "--json"):
            ask(*filter(None, (tool, form)), *where, RDZV_TOKEN=NEW)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        seen["/metrics"] = answer.read().decode()
    for pid, command in meeting.processes().items():
        seen[f"the command line of {pid}"] = command
    workers = [each for node in nodes for each in job.workers(node)]
    assert len(workers) == 2
    for worker in workers:
        seen[f"the environment of worker {worker}"] = Path(f"/proc/{worker}/environ").read_text()
    token = token_of(Request(meeting.backend, "", meeting.run_id, 1, 1, 1, conf={"token_file": str(file)}))
    place = Endpoint("127.0.0.1", meeting.port)
    with closing(
        NativeCoordination(place, meeting.run_id, name="test", who="it", token=token, tls=tls.files)
    ) as service:
        session = service.open_session(60, on_lost=lambda _: None, timeout=60)
        held, _ = session.list("", timeout=60)
        seen["the keys of the run"] = "\n".join(f"{each.key}={each.value!r}" for each in held)
    assert "members/" in seen["the keys of the run"]

    go_on.touch()
    assert [node.wait() for node in nodes] == [5, 5], outputs(nodes)
    seen |= {f"the screen of node {number}": node.text for number, node in enumerate(nodes)}
    for path in (each for folder in (logs, lines) for each in folder.rglob("*") if each.is_file()):
        seen[str(path)] = path.read_text()
    assert any(name.startswith(str(logs)) for name in seen)
    assert any(name.startswith(str(lines)) for name in seen)
    for command in (("timeline", str(lines)), ("timeline", "--json", str(lines)), ("logs", str(logs))):
        ask(*command)
    found = [name for name, text in seen.items() for secret in secrets if secret in text]
    assert found == []
