"""Two jobs that come to the same name on a service of many jobs, and nodes that never get a place."""

from __future__ import annotations

import socket

from kits.launcher.elastic_kit import Job, Meeting, in_one_round, observing, outputs, worlds
from kits.launcher.harness import error_of


def test_job_without_a_name_is_refused_where_others_meet_too(meeting: Meeting) -> None:
    meeting.serve()
    agent = meeting.run("says.py", meeting.directory / "stop", 0, backend=meeting.backend)
    message = error_of(agent, 2)
    assert f"other jobs may meet at {meeting.endpoint}, too, and this one has no name there" in message
    assert "rdzv-run --rdzv-id=NAME ..." in message
    assert agent.reports() == []


def test_another_job_of_the_same_name_is_no_spare_and_no_member(meeting: Meeting) -> None:
    """Neither of a job that is full, nor of one that has room: ``none``, which is what both may have been given."""
    meeting.serve()
    conf = "ttl=60"
    job = Job(meeting, "1:2", script="says.py", conf=f"last_call_timeout=0,{conf}")
    with observing(meeting) as observer:
        first = job.node()
        in_one_round(first)
        others = {
            "here report.py ..., there says.py ... ...": Job(
                meeting, "1:2", script="report.py", args=("ok",), conf=conf
            ),
            "says.py ... ..., here and there, with other values": Job(
                meeting, "1:2", script="says.py", code=3, conf=conf
            ),
        }
        for said, other in others.items():
            stranger = other.node()
            message = error_of(stranger, 78)
            assert f"settings than {socket.gethostname()} (pid {first.pid}), the first node" in message
            assert f"the command: {said}\n" in message
            assert "For another job choose another --rdzv-id." in message
            assert stranger.reports() == []
        observer.wait_members(first)
    second = job.node()
    in_one_round(first, second)
    job.finish(first, second)
    assert worlds(first) == [1, 2], "nobody else has disturbed it"


def test_spare_of_a_job_that_is_done_has_succeeded_and_says_what_it_was(meeting: Meeting) -> None:
    meeting.serve()
    stop = meeting.directory / "stop-all"
    job = Job(meeting, 2, script="says.py", conf="allow_same_host=true,ttl=60", args=(stop, 0))
    nodes = [job.node(rank) for rank in range(2)]
    in_one_round(*nodes)
    spare = job.node()
    spare.wait_for(r"round 1 is complete with its 2 nodes; this node is a spare")
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert spare.wait() == 0, spare.text
    says = f"run {meeting.run_id!r} is done without this node, which was a spare, and has not run its script"
    assert says in spare.text
    assert spare.reports() == []
