"""Two jobs that come to the same name on a service of many jobs, and nodes that never get a place."""

from __future__ import annotations

import pytest
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, observing, outputs, parallel_only, worlds
from kits.launcher.harness import error_of

pytestmark = pytest.mark.thorough


@parallel_only  # what refuses is the same over etcd
def test_another_job_of_the_same_name_is_no_spare_and_no_member(meeting: Meeting) -> None:
    """Neither of a job that is full, nor of one that has room: ``none``, which is what both may have been given."""
    meeting.serve()
    conf = "ttl=60"
    job = Job(meeting, "1:2", script="says.py", conf=f"last_call_timeout=0,{conf}")
    with observing(meeting) as observer:
        first = job.node()
        in_one_round(first)
        others = [
            Job(meeting, "1:2", script="report.py", args=("ok",), conf=conf),
            Job(meeting, "1:2", script="says.py", code=3, conf=conf),  # with other values
        ]
        for other in others:
            stranger = other.node()
            message = error_of(stranger, 78)
            assert all(each in message for each in (f"pid {first.pid}", "the command", "--rdzv-id"))
            assert stranger.reports() == []
        observer.wait_members(first)
    second = job.node()
    in_one_round(first, second)
    job.finish(first, second)
    assert worlds(first) == [1, 2], "nobody else has disturbed it"


@parallel_only
def test_spare_of_a_job_that_is_done_has_succeeded_and_says_what_it_was(meeting: Meeting) -> None:
    meeting.serve()
    stop = meeting.directory / "stop-all"
    job = Job(meeting, 2, script="says.py", conf="allow_same_host=true,ttl=60", args=(stop, 0))
    nodes = [job.node(rank) for rank in range(2)]
    in_one_round(*nodes)
    spare = job.node()
    spare.wait_for("this node is a spare")
    stop.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert spare.wait() == 0, spare.text
    assert spare.reports() == []
