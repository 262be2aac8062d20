"""`rdzv bench rendezvous`: what it refuses, and how it prints what was measured. Real runs: tests/launcher."""

import pytest

from launcher import tools
from launcher.bench import rendezvous
from launcher.bench.rendezvous import Result, Settings
from launcher.bench.rendezvous_report import as_data, as_text, caption
from rdzv_plugins.errors import UsageError

SETTINGS = Settings(nodes=(64,), targets=("ours", "torch"), server="agent", repeats=3, ttl=10, limit_s=60)


@pytest.mark.parametrize(
    ("argument", "error"),
    {
        "--nodes=16,no": "--nodes=no: a whole number, at least 1",
        "--nodes=3": "--nodes=3: at least 4 nodes are needed",
        "--nodes=100000000": "100000000 nodes in one process need 400000100 open files",
        "--targets=theirs": "--targets: 'theirs' is none of ours, torch",
        "--server=there": "--server: 'there' is none of agent, process",
        "--repeats=0": "--repeats=0: a whole number",
        "--limit=0": "--limit=0: a number of seconds from 1",
        "--limit=nan": "--limit=nan: a number of seconds from 1",
        "--ttl=0.5": "--ttl=0.5: a number of seconds from 1",
    }.items(),
)  # fmt: skip
def test_wrong_argument_is_named(argument, error, capsys) -> None:
    assert tools.main(["bench", "rendezvous", argument]) == UsageError.exit_code
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "nodes", "repeats"),
    [
        ([], (16, 64, 256, 1024, 4096), 3),
        (["--quick"], (4, 16), 1),
        (["--quick", "--nodes=64,8,64", "--repeats=2"], (64, 8), 2),
    ],
)
def test_what_is_measured(arguments, nodes, repeats, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(rendezvous, "run", lambda settings, as_json: asked.append(settings) or 0)
    assert tools.main(["bench", "rendezvous", *arguments]) == 0
    assert (asked[0].nodes, asked[0].repeats, asked[0].targets) == (nodes, repeats, ("ours", "torch"))


def a_round(seconds, requests, per_node) -> dict[str, object]:
    return {"seconds": seconds, "requests": requests, "per_node": per_node, "cpu_s": 2 * seconds, "server_cpu_s": 0.1}


def a_sample(join, loss=None, idle=None, unfinished="", server_peak_mib=None) -> dict[str, object]:
    return {
        "join": join,
        "loss": loss,
        "idle": idle,
        "peak_mib": 250.0,
        "grown_mib": 25.0,
        "unfinished": unfinished,
        "server_peak_mib": server_peak_mib,
    }


def test_figures_and_what_goes_beyond_the_plain_nodes() -> None:
    plain = {"open_session": 1, "put": 3}
    ours = [
        a_sample(a_round(0.5, {"open_session": 64, "put": 198}, plain), a_round(0.2, {"put": 130}, {"put": 2}), {}),
        a_sample(a_round(0.1, {"open_session": 64, "put": 199}, plain), a_round(0.4, {"put": 130}, {"put": 2})),
        a_sample(a_round(0.3, {"open_session": 64, "put": 200, "list": 1}, plain), a_round(0.3, {}, {})),
    ]
    torch = [a_sample(a_round(1.5, {"get": 128}, {"get": 2.0}), idle={"compare_set": 70}, unfinished="7 of 63")]
    data = as_data(Result(64, {"ours": ours, "torch": torch}))
    join = data["targets"]["ours"]["join"]
    assert (join["seconds"]["median"], join["seconds"]["samples"]) == (0.3, [0.5, 0.1, 0.3])
    assert (join["per_node"], join["beyond"]) == (plain, {"put": 8, "list": 1})
    assert data["targets"]["ours"]["idle"] == {}
    assert data["targets"]["torch"]["loss"] is None
    assert data["ratios"] == {"join": 0.2}  # torch has no loss to compare with

    lines = [line.strip() for line in as_text(data).splitlines()]
    assert lines[0] == "64 nodes"
    assert any(line.startswith("ours ") and "0.300 (0.100..0.500)" in line for line in lines)
    assert "requests, join: 1 open_session, 3 put; and 8 put, 1 list" in lines
    assert "requests, idle: 0" in lines
    assert "requests, idle: 70 compare_set" in lines
    assert "torch   did not finish: 7 of 63" in lines
    assert "ours / torch: join 0.2" in lines


def test_what_was_not_measured_is_said() -> None:
    join = a_round(0.5, {"put": 8}, {"put": 2})
    result = Result(4, {"ours": [a_sample(join, server_peak_mib=12.34)], "torch": []}, {"torch": "it took too long"})
    text = as_text(as_data(result))
    assert "torch   not measured: it took too long" in text
    assert "peak of the server's process: 12.3 MiB" in text


@pytest.mark.parametrize(("apart", "said"), [(True, "never ask a name server"), (False, "NOT allowed")])
def test_caption_says_where_names_come_from(apart, said) -> None:
    text = caption(SETTINGS, names_from_hosts=apart)
    assert said in text
    assert "in 30 s after the join" in text


def test_target_that_is_too_slow_is_not_asked_for_more(monkeypatch) -> None:
    def took(seconds: float, unfinished: str = "") -> dict[str, object]:
        return a_sample(a_round(seconds, {}, {}), unfinished=unfinished)

    runs = []

    def run(target, nodes, settings, prefix, *, idle):
        runs.append((target, nodes, tuple(prefix), idle))
        return took(21.0) if target == "ours" else took(1.0, "3 of 16 nodes had joined")

    monkeypatch.setattr(rendezvous, "_run", run)
    given_up: dict[str, str] = {}
    small = rendezvous._measure(16, SETTINGS, ["apart"], given_up)
    large = rendezvous._measure(64, SETTINGS, ["apart"], given_up)
    assert runs == [("ours", 16, (), True), ("torch", 16, ("apart",), True), ("ours", 64, (), True)]
    assert (small.skipped, large.skipped) == ({}, {"torch": "3 of 16 nodes had joined, with 16 nodes"})
