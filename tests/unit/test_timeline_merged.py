"""Timelines of several nodes as one: wrong clocks, torn files, strangers' files, and what an interruption has cost."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from kits.unit.timelines import Node, together

from rdzv_launcher.tools.cli import main
from rdzv_launcher.tools.timeline.clocks import Exchange, estimate
from rdzv_plugins.errors import UsageError


def in_microseconds(number: str) -> float:
    """A number of the data, all of which are in whole microseconds."""
    assert len(number.partition(".")[2]) <= 6
    return float(number)


def timeline(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """The data, and what was said beside it."""
    assert main(["timeline", "--json", *map(str, arguments)]) == 0
    shown = capsys.readouterr()
    return json.loads(shown.out, parse_float=in_microseconds), shown.err


def job_of_two(directory: Path, **second: float) -> tuple[Node, Node]:
    """Round 1; node b's worker is killed at 10 s; round 2; node b is killed at 20 s; round 3 with node a alone."""
    a, b = Node("a", 0, mono=100.0), Node("b", 1, **({"mono": 5000.0} | second))  # type: ignore[arg-type]
    for node in (a, b):
        node.open(0.0)
    together((a, b), 1, 1.0)
    b.note(10.0, "failed", "rank 1 ended with signal 9", exit_code=-9)
    b.notes({10.001: "stopping", 10.2: "stopped", 10.3: "asked"})
    a.note(10.35, "over", "b asked for a new round", over=1, why="asked")
    a.notes({10.4: "stopping", 10.9: "stopped"})
    b.note(11.0, "delayed", seconds=1.0)
    together((a, b), 2, 12.0)
    a.note(20.5, "lost", "b was lost", over=2)
    a.note(20.5, "over", "b was lost", over=2, why="lost")
    a.notes({20.6: "stopping", 20.7: "stopped"})
    together((a,), 3, 20.8)
    a.notes({30.0: "done", 30.1: "stopping"})
    a.note(30.2, "left", outcome="done")
    a.note(30.3, "ended", exit_code=0)
    a.write(directory)
    b.write(directory)
    return a, b


@pytest.mark.parametrize("wall", [1_700_000_000.0, 1_700_007_200.0, 0.0], ids=["right", "two hours ahead", "epoch"])
def test_phases_follow_each_other_on_one_clock_however_wrong_the_others_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wall: float
) -> None:
    job_of_two(tmp_path, wall=wall)
    data, said = timeline(capsys, tmp_path)
    assert said == ""
    start, first, second = data["interruptions"]
    assert (start["kind"], start["until"]) == ("start", 1)
    assert [each["phase"] for each in start["phases"]] == ["opening", "meeting", "connecting", "completing"]
    assert (first["after"], first["until"], first["cause"]) == (1, 2, "rank 1 ended with signal 9")
    assert (second["after"], second["until"], second["cause"]) == (2, 3, "b was lost")
    within = 0.002  # half of the time that nodes waited for each other
    expected = {"noticing": 0.4, "stopping": 0.5, "deciding": 0.1, "delaying": 1.0}
    for each, seconds, some in ((first, 2.002, expected), (second, 0.302, {"noticing": 0.1})):
        cost = {phase["phase"]: phase["seconds"] for phase in each["phases"]}
        assert {name: cost[name] for name in some} == pytest.approx(some, abs=within)
        assert sum(cost.values()) == pytest.approx(each["seconds"], abs=1e-5) == pytest.approx(seconds, abs=within)
    assert first["workers_started_after"] == pytest.approx(0.01, abs=within)
    last = {each["phase"]: each["last"] for each in first["phases"]}
    assert (last["stopping"], last["delaying"]) == ("node 0 on a (pid 1)", "node 1 on b (pid 1)")
    assert data["without_round"] == pytest.approx(sum(each["seconds"] for each in data["interruptions"]), abs=1e-5)
    clock = next(each["clock"] for each in data["agents"] if each["host"] == "b")
    assert clock["ahead"] == pytest.approx(wall - 1_700_000_000.0, abs=within)
    assert 0 < clock["uncertainty"] <= within
    assert clock["exchanges"] == 4, "two rounds, and the store of each"


def test_the_trace_is_one_that_perfetto_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_of_two(tmp_path, wall=1_700_000_003.5)
    out = tmp_path / "out.json"
    assert main(["timeline", str(tmp_path), f"--chrome={out}"]) == 0
    assert "node 0 on a (pid 1) was the last" in capsys.readouterr().out
    events = json.loads(out.read_text())["traceEvents"]
    both = {"ph", "name", "pid", "tid", "args"}
    needed = {"M": both, "X": both | {"cat", "ts", "dur"}, "i": both | {"s", "cat", "ts"}}
    assert all(set(each) == needed[each["ph"]] for each in events)
    names = {each["args"]["name"]: each["pid"] for each in events if each["name"] == "process_name"}
    assert names == {"run job": 1, "node 0 on a (pid 1)": 2, "node 1 on b (pid 1)": 3}
    [second] = [each for each in events if each["name"] == "round 2"]
    assert (second["ts"], second["dur"]) == pytest.approx((12.002e6, 8.498e6), abs=2e3)
    first = next(each for each in events if (each["name"], each["pid"]) == ("working", 2))
    assert (first["ts"], first["dur"]) == pytest.approx((1.012e6, 9.338e6), abs=2e3)


def test_what_cannot_be_read_is_said_by_name_and_harms_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_of_two(tmp_path)
    whole, _ = timeline(capsys, tmp_path)
    own = (tmp_path / "job-a.jsonl").read_text().splitlines()
    line = json.loads(own[0])
    bad = [line | {"mono": "1"}, line | {"mono": float("nan")}, line | {"wall": 1e300}, line | {"round": True}, [], 7]
    stranger = Node("a", run="another \x1b[2Jrun", wall=1_600_000_000.0)
    stranger.open(0.0)
    stranger.write(tmp_path).rename(tmp_path / "other.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name, content in {
        "1empty": "",
        "text": "to be\nor not\n" * 3,
        "newer": own[0].replace('"v":1', '"v":2') + "\n",
        "copy": "\n".join(own) + "\n",
        "wrong": "".join(f"{json.dumps(each)}\n" for each in bad) + "[" * 100_000 + "\n",
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(content)
    (tmp_path / "binary.jsonl").write_bytes(bytes(range(256)) * 100)
    with (tmp_path / "job-b.jsonl").open("a") as torn:
        torn.write(own[-1][:50])
    data, said = timeline(capsys, tmp_path, tmp_path / "gone.jsonl")
    for name in ("left_out", "agents"):
        del data[name], whole[name]
    assert data == whole
    expected = {
        "1empty": ["empty"],
        "text": ["skipped lines 1, 2, 3 and 3 more: "],
        "newer": ["skipped line 1: it is of version 2"],
        "other": [r"it belongs to run 'another \x1b[2Jrun', not 'job' (show it with --run=another \x1b[2Jrun)"],
        "pipe": ["not a regular file"],
        "job-a": [f"skipped: agent agent-a is already in {tmp_path}/copy.jsonl"],
        "wrong": [f"skipped line {number}: " for number in (1, 2, 3, 4)],
        "job-b": ["skipped line 17: incomplete"],
        "gone": ["No such file"],
    }
    wanted = [f"{tmp_path}/{name}.jsonl: {each}" for name, these in expected.items() for each in these]
    assert [each for each in wanted if each not in said] == [], said
    assert "\x1b" not in said


def test_what_cannot_be_shown_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, named in (
        ((), "no file"),
        (("--run=elsewhere",), "'elsewhere'"),
        ((f"--chrome={tmp_path}",), "chrome="),
    ):
        assert main(["timeline", str(tmp_path), *given]) == UsageError.exit_code
        assert named in capsys.readouterr().err
        job_of_two(tmp_path)


def test_the_newest_launch_of_a_run_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same directory and the same run id, used again."""
    job_of_two(tmp_path)
    again = Node("c", 0, mono=7.0, wall=1_700_001_000.0)
    again.open(0.0)
    together((again,), 1, 1.0)
    again.note(2.0, "left", outcome="done")
    again.write(tmp_path)
    data, said = timeline(capsys, tmp_path)
    assert [each["host"] for each in data["agents"]] == ["c"]
    assert f"{tmp_path}/job-a.jsonl, {tmp_path}/job-b.jsonl: skipped: an earlier launch of run 'job'" in said


def test_rounds_that_nodes_count_by_themselves_are_told_apart_by_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a stranger's backend. Node b has come later, so its first round is the second of the job."""
    a, b = Node("a", 0, clock="one"), Node("b", 1, clock="one")
    a.open(0.0)
    a.round(1, 1.0, 1, numbered=False)
    b.open(5.0)
    a.note(5.5, "over", "nodes have come", over=1)
    a.notes({5.6: "stopping", 5.8: "stopped"})
    for number, node in enumerate((b, a), start=1):
        node.round(number, 6.0, 2, numbered=False)
        node.note(7.0, "failed", f"rank {node.rank} failed")
        node.notes({7.1: "stopping", 7.5: "stopped"})
        node.note(7.6, "left", "no restart is left", outcome="failed")
    a.write(tmp_path)
    b.write(tmp_path)
    data, _ = timeline(capsys, tmp_path)
    assert [(each["round"], each["nodes"], each["files"]) for each in data["rounds"]] == [(1, 1, 1), (2, 2, 2)]
    _, came, end = data["interruptions"]
    assert (came["cause"], came["seconds"]) == ("nodes have come", pytest.approx(0.504))
    assert [each["phase"] for each in came["phases"]] == ["noticing", "stopping", "deciding", "completing"]
    assert (end["kind"], end["seconds"]) == ("end", pytest.approx(0.6))
    assert [each["phase"] for each in end["phases"]] == ["noticing", "stopping", "ending"]


def test_offsets_are_within_what_is_said_of_them() -> None:
    """Many clocks, wrong by hours, and exchanges with delays that are not the same in both directions."""
    chance = random.Random(21)
    clocks = {f"c{number}": chance.uniform(-1e5, 1e5) for number in range(40)} | {"c0": 0.0}
    exchanges = []
    for number in range(60):
        some = chance.sample(sorted(clocks), 5)
        told = {each: number + chance.uniform(0, 0.01) for each in some}
        all_told = max(told.values())
        before = {each: at + clocks[each] for each, at in told.items()}
        after = {each: all_told + chance.uniform(0, 0.02) + clocks[each] for each in some}
        exchanges.append(Exchange(before, after))
    offsets = estimate("c0", dict.fromkeys(clocks, 0.0), exchanges)
    for clock, ahead in clocks.items():
        found = offsets[clock]
        assert found.uncertainty is not None
        assert found.uncertainty < 0.04
        assert abs(found.seconds + ahead) <= found.uncertainty + 1e-6, clock
    # clocks that drift are followed as far as that goes: by 20 millionths for hours, with exchanges a thousandth of it
    drifts = [
        Exchange({"a": at, "b": at * 1.00002}, {"a": at + 0.0001, "b": at * 1.00002 + 0.0001})
        for at in (0.0, 3600.0, 7200.0)
    ]
    found = estimate("a", {"a": 0.0, "b": 0.0}, drifts)["b"]
    assert found.seconds == pytest.approx(-0.072, abs=0.08)
    assert found.uncertainty is not None
    assert found.uncertainty >= 0.02, "it is said"


def test_a_clock_that_lies_harms_no_other() -> None:
    """One that was set, or a forged file: what it says cannot be true."""
    honest = {"a": 0.0, "b": 50.0, "c": -30.0}
    exchanges = []
    for number in range(4):
        at = float(number)
        before = {each: at + ahead for each, ahead in honest.items()}
        after = {each: at + 0.01 + ahead for each, ahead in honest.items()}
        lie = number * 1000.0
        exchanges.append(Exchange(before | {"liar": at + lie}, after | {"liar": at + 0.01 + lie}))
    exchanges.append(Exchange({"a": 9.0, "b": 50.0}, {"a": 3.0, "b": 50.01}))  # the reference itself, once
    offsets = estimate("a", {"a": 0.0, "b": 1.0, "c": 2.0, "liar": 3.0, "alone": 4.0}, exchanges)
    assert offsets["b"].seconds == pytest.approx(-50, abs=0.011)
    assert offsets["c"].seconds == pytest.approx(30, abs=0.011)
    assert (offsets["liar"].seconds, offsets["liar"].uncertainty) == (3.0, None)
    assert offsets["liar"].why == "it contradicts the others"
    assert (offsets["alone"].seconds, offsets["alone"].why) == (4.0, "no round was complete with both")


NONSENSE = [None, True, 0, -1, 3, 10**11, -9e10, 0.5, "", "\x1b[2J", [1], {"a": 1}, "agent-a", "complete", "over"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_forged_events_are_borne(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    """Whoever can write into the directory can write anything: phases add up all the same, and nothing goes wrong."""
    chance = random.Random(seed)
    nodes = {node.name: [json.loads(each.line()) for each in node.records] for node in job_of_two(tmp_path)}
    for _ in range(15):
        for name, events in nodes.items():
            forged = [dict(each) for each in events]
            for _ in range(chance.choice([1, 5, 20])):
                event = chance.choice(forged)
                field = chance.choice([*event, "world", "numbered", "over", "clock", "pid"])
                if chance.random() < 0.7:
                    event[field] = chance.choice(NONSENSE)
                elif isinstance(event.get(field), int | float):
                    event[field] += chance.choice([-1e3, 1e3, 1, 1e8])
                else:
                    forged.append(dict(event))
            (tmp_path / f"job-{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in forged))
        data, said = timeline(capsys, tmp_path, f"--chrome={tmp_path}/out")
        for each in data["interruptions"]:
            lengths = [phase["seconds"] for phase in each["phases"]]
            assert min(lengths) >= 0
            # as exact as numbers of that size are
            assert sum(lengths) == pytest.approx(each["seconds"], rel=1e-6, abs=1e-3)
        assert main(["timeline", str(tmp_path)]) == 0
        assert "\x1b" not in said + capsys.readouterr().out
