"""Tokens, TLS, secrets and what others write, with real agents: who belongs to a job, and what nobody gets to see."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, root_of
from kits.launcher.harness import AgentProcess, free_port
from kits.wire import wire_client as wire
from kits.wire.other_user import NOBODY, asked
from kits.wire.tls_kit import Issued
from msgspec.structs import asdict

from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused
from rdzv_plugins.interfaces import Failure, Outcome, Request
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.rounds.ends import to_json
from rdzv_plugins.security.job_token import token_of
from rdzv_plugins.testing.launched import outputs

TOKEN, OTHER, THIRD = ("0123456789abcdef" + each * 16 for each in "mox")
REFUSED = AccessRefused.exit_code
PATIENCE_S = 60


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


def test_a_job_under_tls_is_for_who_knows_its_token(meeting: Meeting, tmp_path: Path) -> None:
    ours, theirs = Issued(tmp_path / "ours"), Issued(tmp_path / "theirs", by="theirs")
    file, stop = written(tmp_path / "token", f"{TOKEN}\n"), tmp_path / "stop"
    conf = "last_call_timeout=0,linger=30,ttl=60"
    job = Job(meeting, "2:3", script="says.py", args=(stop, 0), conf=conf, flags=["-v"])
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
    for port in (int(each["MASTER_PORT"]) for node in nodes for each in node.reports()):
        with closing(wire.Raw(port)) as worker:  # of this user: plain, within the machine
            assert worker.fence() == b""
        if os.getuid() == 0:
            answer = asked(("127.0.0.1", port), NOBODY)
            assert answer in (b"", "ConnectionResetError", "BrokenPipeError")

    for worker_pid in (pid for node in nodes for pid in job.workers(node)):
        assert TOKEN.encode() not in Path(f"/proc/{worker_pid}/environ").read_bytes()
    assert all(TOKEN not in command for command in meeting.processes().values())
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert all(TOKEN not in agent.text for agent in meeting.agents)


@pytest.mark.thorough
def test_a_service_under_tls_has_tokens_for_runs_of_their_own_and_changes_them(
    meeting: Meeting, tmp_path: Path
) -> None:
    tls = Issued(tmp_path / "ours")
    file = written(tmp_path / "tokens", f"team {TOKEN} team-*\nall {OTHER} *\n")
    serving = meeting.start(
        ["rdzv", "serve", f"--rdzv-endpoint={meeting.endpoint}", f"--rdzv-conf=token_file={file},{tls.conf}"]
    )
    serving.wait_for("serving a store at .*, TLS")

    def ran(run: str, token: str, conf: str = "") -> AgentProcess:
        """A job of one node that has ended."""
        flags = f"{tls.conf},{conf}"
        agent = Job(meeting, 1, script="environ.py", run_id=run, args=("none",), conf=flags).node(RDZV_TOKEN=token)
        agent.wait()
        return agent

    assert ran("team-a", TOKEN).wait() == 0, meeting.agents[-1].text
    assert ran("team-c", TOKEN, "store=parallel").wait() == 0, meeting.agents[-1].text
    assert "'else'" in ran("else", TOKEN).text
    written(file, f"team {THIRD} team-*\nall {OTHER} *\nnobody\n")
    serving.wait_for("keeping the previous tokens")
    written(file, f"team {THIRD} team-*\nall {OTHER} *\n")
    serving.wait_for(r"has changed: now accepting 2 tokens")
    serving.process.send_signal(signal.SIGHUP)  # without it no certificate has changed
    serving.wait_for("was read again")
    assert ran("team-b", THIRD).wait() == 0, meeting.agents[-1].text
    assert ran("team-a", TOKEN).wait() == REFUSED, meeting.agents[-1].text
    assert status(meeting, meeting.port, tls.conf, RDZV_TOKEN=OTHER) == 0
    for conf, token in ((tls.conf, THIRD), (tls.conf, ""), (f"cacert={tls.cacert}", OTHER)):
        assert status(meeting, meeting.port, conf, **({"RDZV_TOKEN": token} if token else {})) == REFUSED
    serving.process.send_signal(signal.SIGTERM)
    assert serving.wait() == 0, serving.text
    assert not any(each in agent.text for agent in meeting.agents for each in (TOKEN, OTHER, THIRD))


@pytest.mark.thorough
def test_a_secret_is_nowhere_but_where_it_was_put(meeting: Meeting, tmp_path: Path) -> None:
    """Tokens in the environment and in a file, and the private key of TLS; a worker fails, and a stranger has come."""
    tls, go_on, logs, lines = Issued(tmp_path / "tls"), tmp_path / "go-on", tmp_path / "logs", tmp_path / "timeline"
    file = written(tmp_path / "tokens", f"{TOKEN}\n{OTHER}\n")  # as while it is changed
    secrets = [TOKEN, OTHER, tls.key.read_text().splitlines()[1]]
    port, flags = free_port(), (f"--log-dir={logs}", "--tee=3", f"--timeline={lines}")
    job = Job(meeting, 2, script="report.py", args=("fail_after", go_on, 1, 5), conf=f"linger=30,{tls.conf}")
    first = job.node(conf=f"token_file={file}", flags=[*flags, f"--health-port={port}"])
    meeting.wait_listening()
    nodes = [first, job.node(flags=flags, RDZV_TOKEN=TOKEN)]
    stranger = job.node(RDZV_TOKEN=f"{TOKEN}-wrong")
    assert stranger.wait() == REFUSED, stranger.text
    for node in nodes:
        node.wait_for(r'"SUM": 1\.0')
    seen: dict[str, str] = {"the stranger's screen": stranger.text}

    def ask(*command: str, **env: str) -> None:
        asked = meeting.start(["rdzv", *command], **env)
        assert asked.wait() == 0, asked.text
        seen[" ".join(["rdzv", *command[:2]])] = asked.text

    where = (f"--rdzv-endpoint=127.0.0.1:{meeting.port}", f"--rdzv-conf={tls.conf}")
    for tool in ("status", "stacks", "top", "doctor"):
        for form in ("--once" if tool == "top" else "", "--json"):
            ask(*filter(None, (tool, form)), *where, RDZV_TOKEN=TOKEN)
    top = seen["rdzv top --json"]
    (watched,) = json.loads(top[top.index("{") :])["jobs"]
    assert watched["waits_problem"] == "", "the workers' store asks for the token and the certificates, too"
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
        session = service.open_session(60, on_lost=lambda _: None, timeout=PATIENCE_S)
        held, _ = session.list("", timeout=PATIENCE_S)
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


NASTY = "evil\x1b[2J\x1b]0;owned\x07\x9b\u202e\nrdzv-run: all is well"
ESCAPED = r"evil\x1b[2J\x1b]0;owned\x07\x9b\u202e\nrdzv-run: all is well"


@pytest.mark.thorough
def test_agent_shows_what_other_nodes_say_of_themselves(meeting: Meeting) -> None:
    """Without a byte that a terminal acts upon."""
    agent = Job(meeting, 3, script="says.py").node()
    meeting.wait_listening()
    place = Endpoint("127.0.0.1", meeting.port)
    with closing(NativeCoordination(place, meeting.run_id, name="test", who="it")) as service:
        session = service.open_session(60, on_lost=lambda _: None, timeout=PATIENCE_S)

        def put(key: str, value: bytes) -> None:
            session.put({key: value}, timeout=PATIENCE_S)

        def member(name: str, **fields: object) -> bytes:
            return json.dumps(asdict(Member(name, NASTY, NASTY, 1, "10.0.0.1", "", 1)) | fields).encode()

        put(keys.MEMBERS + "a", member("a"))
        agent.wait_for(r"2 of 3 nodes have joined .*evil\\x1b\[2J")
        put(keys.MEMBERS + f"b{NASTY}", member("b", nproc=-1))
        agent.wait_for("not a Member")
        put(keys.PROGRESS, NASTY.encode())
        failure = Failure(1, NASTY, 1, 0, 5, 9, (f"\x1b[31mred\x1b[0m{NASTY}",))
        put(keys.END, to_json(Outcome("failed", NASTY, failure)).encode())
        assert agent.wait() == 9, agent.text
    assert f"| red{ESCAPED}" in agent.text
    assert f"(node 1 on {ESCAPED}, local rank 0" in agent.text
    assert agent.text.replace("\n", "").isprintable(), ascii(agent.text)
    assert not [line for line in agent.text.splitlines() if line.startswith("rdzv-run: all is well")], agent.text
