"""What others write reaches agents' logs without a byte that a terminal acts upon."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from kits.launcher.elastic_kit import Job, Meeting, parallel_only
from msgspec.structs import asdict

from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.interfaces import Failure, Outcome
from rdzv_plugins.rounds.ends import to_json

pytestmark = pytest.mark.thorough

NASTY = "evil\x1b[2J\x1b]0;owned\x07\x9b\u202e\nrdzv-run: all is well"
ESCAPED = r"evil\x1b[2J\x1b]0;owned\x07\x9b\u202e\nrdzv-run: all is well"
PATIENCE_S = 60


def assert_harmless(text: str) -> None:
    assert text.replace("\n", "").isprintable(), ascii(text)
    assert not [line for line in text.splitlines() if line.startswith("rdzv-run: all is well")], text


@parallel_only  # the agents' part is the same over etcd
def test_agent_shows_what_other_nodes_say_of_themselves(meeting: Meeting) -> None:
    job = Job(meeting, 3, script="says.py")
    agent = job.node()
    with closing(meeting.coordination(meeting.run_id)) as service:
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
    assert_harmless(agent.text)
