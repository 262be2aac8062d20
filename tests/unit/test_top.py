"""rdzv top without a job: what the keys of a run mean, what strangers may write there, what is shown of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rdzv_launcher.run.node_stats import LogAnswer, LogStream, log_tail
from rdzv_launcher.run.stacks.node import NodeSnapshot, StackedWorker
from rdzv_launcher.tools.top import as_text, is_well, run
from rdzv_launcher.tools.top.screen import Screen, log_lines
from rdzv_launcher.tools.top.watching import cpu_percent, event_text, nodes_of, parse_node_stats, waits_of
from rdzv_plugins.coordination import Event, KeyValue
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.keys import Assignment, Member, OperatorMessage, Round, encode
from rdzv_plugins.errors import MissingDependency
from rdzv_plugins.interfaces import Failure, Request, RunStatus
from rdzv_plugins.rounds.ends import to_json

COMPLETE = RunStatus(number=2, state="complete", members=2)


def member(name: str, **said: Any) -> KeyValue:
    found = Member(name, f"host-{name}", "m", 7, "10.0.0.1", "10.0.0.1", 2, **said)
    return KeyValue(keys.MEMBERS + name, encode(found), 1)


def place(name: str, rank: int, round_: int = 2, **told: Any) -> KeyValue:
    found = Assignment(round_, rank, 2, name, f"host-{name}", "m", 7, "10.0.0.1", 2, **told)
    return KeyValue(keys.NODES + name, encode(found), 1)


def word(name: str, **told: Any) -> KeyValue:
    """As the leader writes it to a node that has no place."""
    return KeyValue(keys.NODES + name, encode(Assignment(2, **told)), 1)


@pytest.mark.parametrize(
    ("status", "told", "there", "state"),
    [
        (COMPLETE, [place("a", 0)], [member("a", store_ready_round=2)], (0, "works")),
        (COMPLETE, [place("a", 0)], [member("a", store_ready_round=2, finished_round=2)], (0, "done")),
        (COMPLETE, [place("a", 0)], [member("a", store_ready_round=2, cut_off_round=2)], (0, "cut off")),
        (COMPLETE, [place("a", 0)], [member("a", last_round=2)], (0, "waits")),
        (COMPLETE, [place("a", 0)], [member("a", leaving="lost", reason="it got SIGTERM")], (0, "leaves")),
        (COMPLETE, [place("a", 0)], [], (0, "gone")),
        (COMPLETE, [], [member("a")], (None, "spare")),
        (COMPLETE, [word("a", refused="other settings")], [member("a")], (None, "refused")),
        (COMPLETE, [word("a", left_out="too slow")], [member("a")], (None, "left out")),
        (COMPLETE, [word("a", spare="all 2 places are taken")], [member("a")], (None, "spare")),
        (RunStatus(number=1, state="over"), [], [member("a")], (None, "waits")),
        (RunStatus(number=1, state="over"), [place("a", 0)], [member("a", store_ready_round=2)], (0, "joins")),
        (RunStatus(), [KeyValue("node/a", b"\x00", 1)], [member("a")], (None, "waits")),
    ],
)
def test_what_a_node_does(
    status: RunStatus, told: list[KeyValue], there: list[KeyValue], state: tuple[int | None, str]
) -> None:
    [node] = nodes_of(status, told, there)
    assert (node.rank, node.state) == state


def test_a_place_of_a_round_that_is_long_over_is_forgotten() -> None:
    assert nodes_of(COMPLETE, [place("a", 0, 1)], []) == []
    ranks = [each.rank for each in nodes_of(COMPLETE, [place("b", 1), place("a", 0)], [member("c"), member("b")])]
    assert ranks == [0, 1, None]


VITALS: dict[str, Any] = {
    "stage": "working",
    "restarts": 1,
    "at": 10.0,
    "workers": [{"rank": 3, "local_rank": 1, "pid": 9, "state": "S", "cpu_s": 4.0, "memory_bytes": 2**20}],
}


def test_use_of_processors_is_between_two_answers_of_the_same_worker() -> None:
    [worker] = VITALS["workers"]
    before = parse_node_stats(VITALS)
    now = parse_node_stats(VITALS | {"at": 12.0, "workers": [{**worker, "cpu_s": 5.0}]})
    other = parse_node_stats(VITALS | {"workers": [{**worker, "pid": 10}]})
    [here] = now.workers
    told = [cpu_percent(now, then, here) for then in (before, None, now, other)]
    assert told == [50.0, None, None, None]
    for change in ({"workers": [{}] * 5000}, {"at": None}, {"restarts": float("inf")}):
        with pytest.raises(ValueError, match=r"\$|Vitals"):
            parse_node_stats(VITALS | change)


FAILURE = Failure(1, "a", 3, 1, 12, -9)


@pytest.mark.parametrize(
    ("key", "value", "before", "said"),
    [
        (keys.ROUND, encode(Round(3, "complete", 2)), None, "round 3 is complete: 2 nodes"),
        (keys.ROUND, encode(Round(3, "over", 2, "a was lost")), None, "round 3 is over: a was lost"),
        (keys.MEMBERS + "a", member("a").value, None, "host-a (pid 7) joined the job"),
        (keys.MEMBERS + "a", member("a", store_ready_round=2).value, member("a").value, ""),
        (keys.MEMBERS + "a", None, member("a").value, "host-a (pid 7) is gone"),
        (keys.MEMBERS + "a", None, member("a", leaving="done").value, "host-a (pid 7) left: done"),
        (keys.FAILURES + "3", to_json(FAILURE).encode(), None, "rank 3 (node 1 on a, local rank 1, pid 12) ended with"),
        (keys.NOTICE, encode(OperatorMessage("b\x1b[2Jwas left out")), None, "b\\x1b[2Jwas left out"),
        (keys.MEMBERS + "a", b"[" * 9999, None, ""),
        (keys.MEMBERS + "a", None, None, ""),
        (keys.ROUND, b"\xff", None, ""),
        (keys.END, b"{}", None, ""),
        (keys.LEADER, None, b"", "no leader"),
    ],
)
def test_what_happens_is_a_sentence(key: str, value: bytes | None, before: bytes | None, said: str) -> None:
    told = event_text(Event(key, value, 2), None if before is None else KeyValue(key, before, 1))
    assert told.startswith(said) if said else told == ""
    assert told.isprintable()


NODE: dict[str, Any] = {"rank": 0, "host": "a", "pid": 7, "state": "works", "round": 1, "heard_s": 3599.0}
NODE |= {"restarts": 0, "stage": "working", "problem": "", "workers": []}
FOUND = {"number": 1, "state": "complete", "reason": "", "progress": "", "members": 1, "leader": "a (pid 7)"}


def job(**over: Any) -> dict[str, Any]:
    nothing = {"problem": "", "last_end": "", "waits": [], "waits_problem": "", "events": [], "events_ever": 0}
    return {"run": "a", "round": FOUND, "nodes": [NODE], **nothing} | over


def test_what_is_not_well() -> None:
    assert is_well(job())
    ill = [{"nodes": [NODE | {"state": state}]} for state in ("gone", "silent", "waits", "refused")]
    for each in [*ill, {"problem": "out of sight"}, {"round": None}, {"round": FOUND | {"state": "over"}}]:
        assert not is_well(job(**each))


class Example:
    """In place of what is watched."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs = list(jobs)

    def data(self) -> dict[str, Any]:
        return {"endpoint": "e", "problem": "", "jobs": self.jobs, "left_out": 0}


def test_the_screen_takes_what_strangers_write_as_text_and_keeps_the_chosen_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    evil = "[red]a[/x]\x1b[2J"
    worker = {"rank": 3, "local_rank": 1, "pid": 9, "state": "S", "cpu_percent": None, "memory_bytes": 2**20}
    told = NODE | {"host": evil, "workers": [worker]}
    nodes = [{**told, "rank": each, "pid": each} for each in range(100)]
    event = {"at": 0.0, "text": evil}
    watch = Example(job(nodes=nodes, last_end=evil, waits=[evil], events=[event], events_ever=1))

    async def drive() -> None:
        screen = Screen(watch, REQUEST)  # type: ignore[arg-type]

        async def until_shown(text: str) -> None:
            while text not in screen.export_screenshot().replace("&#160;", " "):
                await pilot.pause(0.05)

        assert screen.no_color
        async with screen.run_test(size=(80, 24)) as pilot:
            await pilot.press("down", "down")
            watch.jobs = [job(nodes=nodes[:90])]  # other rows: the third one stays the third
            screen.show()
            await until_shown("[red]a[/x")
            assert screen.node is not None
            assert screen.node["rank"] == 2
            await pilot.press("r", "escape", "w", "escape")
            for key in ("s", "l"):  # nodes that cannot be asked are a sentence, too
                await pilot.press(key)
                await until_shown("has no port")
                await pilot.press("escape")
            watch.jobs = []
            screen.show()
            await until_shown("no job found at")
            await pilot.press("q")

    asyncio.run(drive())


def test_without_the_extra_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)  # type: ignore[arg-type]
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    with pytest.raises(MissingDependency, match="Textual") as raised:
        run(argparse.Namespace(timeout=10.0, once=False, json=False))
    assert "pip install 'rdzv-plugins[top]'" in raised.value.remedy


REQUEST = Request(backend="", run_id="a", endpoint="e", min_nodes=1, max_nodes=1, nproc_per_node=0)


def test_who_waits_is_what_rdzv_status_says_of_the_workers_store() -> None:
    client = {"address": "10.0.0.7:50122", "pid": 901, "waiting_s": 118.0}
    waited = {"key": "/0/3", "waiters": 2, "oldest_s": 118.0, "clients": [client]}
    store = {"statistics": {"keyspaces": [{"name": "w", "waited": [waited], "waited_keys": 3, "trunks": []}]}}
    assert waits_of(store) == [
        "for /0/3: 2 clients for 1 min 58 s: 10.0.0.7:50122 (pid 901) and 1 more",
        "and 2 more keys",
    ]
    for nothing in (None, {}, {"statistics": None}, {"statistics": {"keyspaces": [{"waited": 3}]}}):
        assert waits_of(nothing) == []


def test_the_last_lines_of_a_worker_are_read_where_they_are(tmp_path: Path) -> None:
    out = tmp_path / "stdout.log"
    out.write_bytes(b"new 0%\rnew 9%\r\nhalf")
    (tmp_path / "stdout.log.1").write_bytes(b"old\n" * 3)
    paths = {0: {"stdout": str(out), "stderr": ""}, 1: {"stdout": os.devnull, "stderr": str(tmp_path / "none")}}
    node = NodeSnapshot("a", 7, workers=(StackedWorker(4, 0, 11), StackedWorker(5, 1, 12)))

    def told(**arguments: Any) -> list[tuple[list[str], str]]:
        said = log_tail(arguments, node, paths.__getitem__, lambda local_rank: ["x", f"stderr of {local_rank}"])
        return [(each["lines"], each["problem"]) for each in said["streams"]]

    assert told(rank=4, lines=3) == [(["old", "new 9%", "half"], ""), (["x", "stderr of 0"], "")]
    assert told(rank=5, lines=1) == [([], "goes nowhere: a filter of ranks leaves it out"), ([], "")]
    paths[0]["stdout"] = ""
    assert "--log-prefix" in told(rank=4)[0][1]
    for wrong in ({}, {"rank": 6}, {"rank": 4, "lines": 0}, {"rank": 4, "lines": 501}, {"rank": 4, "lines": "all"}):
        with pytest.raises(ValueError, match=r"no worker of rank|is not from 1 to 500"):
            told(**wrong)


def test_many_jobs_are_a_table_first_and_lines_are_shown_as_text_whatever_they_hold() -> None:
    text = as_text({"endpoint": "e", "jobs": [job(), job(run="b", problem="it is gone")], "left_out": 3})
    head, first, second, *_ = text.splitlines()
    assert head.split() == ["JOB", "ROUND", "STATE", "NODES", "WELL", "WHAT"]
    assert (first.split()[4], second.split()[4]) == ("yes", "NO")
    assert "it is gone" in second
    assert text.endswith("and 3 more jobs")
    shown = [*log_lines(LogAnswer([LogStream("stderr", "/x\n", ["[red]a[/x]\x1b[2J", "b" * 9000], "")]))]
    assert shown[:2] == ["stderr (/x\\n):", "  [red]a[/x]\\x1b[2J"]
    assert all(each.isprintable() and len(each) < 5000 for each in shown)
