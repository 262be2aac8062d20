"""Nodes that cannot take part: each is told what is wrong and with whom, the others go on."""

from __future__ import annotations

import re
import socket

import pytest
from kits.launcher.elastic_kit import Job, Meeting, in_one_round, last_rank, named, observing, parallel_only, worlds
from kits.launcher.harness import error_of, server
from torch.distributed import TCPStore

HOST = re.escape(socket.gethostname())


@parallel_only  # over etcd in the conformance suite
def test_settings_that_differ_are_named_here_and_there_and_with_whom(meeting: Meeting) -> None:
    job = Job(meeting, 2, script="says.py")
    first = job.node()
    with observing(meeting) as observer:
        observer.wait_members(first)
        others = {
            "--nnodes: here 3, there 2": Job(meeting, 3, script="says.py").node(),
            "--nnodes: here 1:2, there 2": Job(meeting, "1:2", script="says.py").node(),
            "--rdzv-conf store: here torch, there parallel": job.node(conf="store=torch"),
        }
        for setting, other in others.items():
            message = error_of(other, 78)
            assert f"settings than {socket.gethostname()} (pid {first.pid}), the first node" in message
            assert f"job at {meeting.endpoint}: {setting}\n" in message
            assert other.reports() == []
        observer.wait_members(first)
    second = Job(meeting, 2, script="says.py", backend=meeting.alias).node()
    in_one_round(first, second)
    job.finish(first, second)
    (warned,) = (agent for agent in (first, second) if "are agents on the same machine" in agent.text)
    assert re.search(rf"nodes 0 \(pid \d+\) and 1 \(pid \d+\) are agents on the same machine \({HOST}\)", warned.text)
    assert all(f"(pid {agent.pid})" in warned.text for agent in (first, second))
    assert warned.text.count("are agents on the same machine") == 1


@parallel_only  # an etcd serves any run
def test_another_run_at_an_agents_endpoint_is_refused_by_name(meeting: Meeting) -> None:
    mine = Job(meeting, 2, script="says.py", run_id="mine")
    first = mine.node(0)
    meeting.wait_listening()
    stranger = Job(meeting, 2, script="says.py", run_id="other").node(1)
    message = error_of(stranger, 76)
    assert f"{meeting.endpoint} serves run 'mine', and this node belongs to run 'other'" in message
    second = mine.node(1)
    in_one_round(first, second)
    mine.finish(first, second)


def test_two_runs_at_one_server_do_not_meet(meeting: Meeting) -> None:
    meeting.serve()
    jobs = [
        Job(meeting, 2, script="says.py", run_id=f"{meeting.run_id}-{name}", conf="allow_same_host=true")
        for name in ("one", "two")
    ]
    pairs = [(job.node(), job.node()) for job in jobs]
    for job, pair in zip(jobs, pairs, strict=True):
        reports = in_one_round(*pair)
        assert {report["TORCHELASTIC_RUN_ID"] for report in reports} == {job.run_id}
    jobs[0].finish(*pairs[0])
    assert all(jobs[1].workers(agent) for agent in pairs[1]), "the other one's end is none of its"
    jobs[1].finish(*pairs[1])
    for agent in (*pairs[0], *pairs[1]):
        assert worlds(agent) == [2]
        assert "same machine" not in agent.text


@parallel_only  # what refuses is the same over etcd
def test_second_agent_with_the_same_node_rank_is_told(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, 2, script="says.py", conf="ttl=10")
    with observing(meeting) as observer:
        holder = job.node(1)
        observer.wait_members(holder)
        message = error_of(job.node(1), 78)
    assert re.search(f"node rank 1 is that of {named(holder)}", message)
    assert "Give every node a --node-rank of its own." in message
    other = job.node(0)
    in_one_round(holder, other)
    job.finish(holder, other)
    assert (last_rank(holder), last_rank(other)) == (1, 0)
    assert "same machine" not in holder.text + other.text, "given ranks say that it is meant"


@parallel_only  # by etcd in test_etcd_refusals.py
@pytest.mark.parametrize("program", ["http", "torch"])
def test_endpoint_of_another_program(meeting: Meeting, program: str) -> None:
    job = Job(meeting, 2, script="says.py", conf="timeout=60,is_host=false")
    if program == "http":
        with server(meeting.port, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            message = error_of(job.node(1), 68)
        assert "answers b'HTTP" in message
    else:
        store = TCPStore("127.0.0.1", meeting.port, is_master=True, wait_for_workers=False)
        message = error_of(job.node(1), 68)
        del store
    assert f"{meeting.endpoint} is not a native store of rdzv-plugins: it is torch's TCPStore or another" in message
    assert "Do all nodes use the same --rdzv-backend?" in message


@parallel_only
@pytest.mark.parametrize("is_host", ["true", "unset"])
def test_port_of_the_endpoint_in_use(meeting: Meeting, is_host: str) -> None:
    with server(meeting.port, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        conf = "is_host=true" if is_host == "true" else ""
        message = error_of(Job(meeting, 2, script="says.py", conf=conf).node(), 68)
    if is_host == "true":
        assert f"cannot listen on port {meeting.port}" in message
        assert "in use by pid" in message
    else:
        assert f"{meeting.endpoint} is not a native store of rdzv-plugins" in message


@parallel_only  # over etcd in the conformance suite
def test_time_out_names_the_missing_ranks_and_who_is_there(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, 4, script="says.py", conf="timeout=15")
    first = job.node(2)
    message = error_of(first, 75)
    there = rf"1 of 4 nodes have joined \({named(first)}\)"
    assert re.search(
        rf"run '{job.run_id}' at {meeting.endpoint}: {there}; missing: node rank 0-1, 3, after 15 s", message
    )
    assert "--rdzv-conf timeout=SECONDS waits longer" in message
    assert first.reports() == []


def test_worker_store_out_of_reach_fails_the_round_and_says_who_cannot_reach_whom(meeting: Meeting) -> None:
    meeting.serve()
    job = Job(meeting, 2, script="says.py", conf="reach_timeout=1,ttl=10")
    nodes = [job.node(0, flags=["--local-addr=192.0.2.1"]), job.node(1)]
    for node in nodes:
        message = error_of(node, 76)
        found = re.search(
            rf"round 1 failed: {HOST} \((?:node rank \d, )?pid (\d+)\) cannot reach the workers' store of {HOST} "
            r"\(node 0\) at 192\.0\.2\.1 port \d+: (.+)",
            message,
        )
        assert found, message
        assert int(found[1]) in {each.pid for each in nodes}
        assert "--local-addr" in message
        assert node.reports() == []


@parallel_only  # refused by what both share, before anything is asked
def test_node_rank_out_of_range_is_refused_at_once(meeting: Meeting) -> None:
    message = error_of(Job(meeting, 2, script="says.py").node(2), 2)
    assert "--node-rank=2 is out of range for 2 node(s)" in message
    assert "Node ranks go from 0 to 1." in message
    assert meeting.processes() == {}
