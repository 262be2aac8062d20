"""What `rdzv bench` prints and writes: tables, progress, the manifest, and JSON lines that are read as they were."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.bench.points_kit import point, theirs

from rdzv_launcher.bench.charts.style import number
from rdzv_launcher.bench.method.manifest import as_text as manifest_as_text
from rdzv_launcher.bench.method.manifest import manifest
from rdzv_launcher.bench.method.points import Point, compare
from rdzv_launcher.bench.method.progress import Progress
from rdzv_launcher.bench.method.results import Writer, read_result, read_results
from rdzv_launcher.bench.report.output import Output
from rdzv_launcher.bench.report.text import as_text
from rdzv_plugins.errors import UsageError

ABOUT = {"bench": "store", "options": {"repeats": 5}}
CHEAP = settings(deadline=None, derandomize=True, max_examples=40)


# what is printed


def test_table_has_each_figure_with_its_spread_and_ratio() -> None:
    mine = point("mine", 0.5, 0.4, 0.45, nodes=64)
    gone = Point(
        "test", "64 nodes", "torch-static", "join", "join", "s", reference=True, unfinished="needs more than 60 s"
    )
    points = [mine, theirs(5.0, 4.0, 4.5), gone, point("mine", 1234.0, 1234.0, figure="loss", unfinished="gave up")]
    text = as_text("64 nodes", points, compare(points))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "64 nodes",
        "join [s]",
        "mine 0.450 (0.400 .. 0.500) 0.100 of torch",
        "torch 4.50 (4.00 .. 5.00)",
        "torch-static needs more than 60 s",
        "join [s]",
        "mine 1,234 (1,234 .. 1,234)",
        "then gave up",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1, "1.00"), (12.34, "12.3"), (99.99, "100"), (123456, "123,456")],
)
def test_numbers_have_three_digits_that_count(value, text) -> None:
    assert number(value) == text


def test_progress_says_what_is_waited_for() -> None:
    stream = io.StringIO()
    progress = Progress("store", stream)
    for turn in (-1, 0):
        progress.step("storm", "ours", turn, 1)
    progress.step("hold", "ours", -1, 1)
    lines = stream.getvalue().splitlines()
    assert [line.partition(" ... ")[0] for line in lines] == ["store: measuring storm", "store: measuring hold"]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    progress = Progress("store", terminal)
    progress.step("storm", "ours", -1, 5)
    progress.step("storm", "libuv", 0, 5)
    progress.done()
    first, second, gone = (each for each in terminal.getvalue().split("\r") if each)
    assert first.startswith("store: storm: ours, warm-up (")
    assert second.startswith("store: storm: libuv, run 1 of 5 (")
    assert gone.strip() == ""
    assert "\n" not in terminal.getvalue()


# manifest and results


def test_manifest_has_what_a_figure_depends_on(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/rdzv", "bench", "store", "--out=my results"])
    about = manifest("store", {"repeats": 5, "nodes": [1, 2]}, {"rdzv-redis": "1.0"})
    assert about["bench"] == "store"
    assert about["options"] == {"repeats": 5, "nodes": [1, 2]}
    assert about["cores"] >= 1
    assert about["memory_gib"] > 0
    assert about["kernel"].startswith("Linux ")
    assert about["cpu"]
    assert set(about["limits"]) == {"open_files", "processes", "somaxconn"}
    assert set(about["versions"]) >= {"rdzv-plugins", "torch", "rdzv-redis"}
    assert len(about["load"].split()) == 3
    assert about["command"] == "rdzv bench store '--out=my results'"
    assert about["started"].endswith("+00:00")
    json.dumps(about)
    text = manifest_as_text(about)
    for key in ("cpu", "kernel", "load", "python"):
        assert str(about[key]) in text
    for name, version in about["versions"].items():
        assert f"{name} {version}" in text
    assert f"open files {about['limits']['open_files']}" in text


NUMBERS = st.floats(0, 1e9, allow_nan=False)
TEXTS = st.text(max_size=8)
POINTS = st.builds(
    Point,
    *(TEXTS,) * 6,
    st.lists(NUMBERS, max_size=4).map(tuple),
    nodes=st.none() | st.integers(1, 9999),
    axis=TEXTS,
    reference=st.booleans(),
    unfinished=TEXTS,
)


@given(st.lists(POINTS, max_size=4), st.dictionaries(TEXTS, NUMBERS), st.booleans())
@CHEAP
def test_results_are_read_as_they_were_written(tmp_path_factory, points, details, ended) -> None:
    file = tmp_path_factory.mktemp("results") / "store-1.jsonl"
    with file.open("w") as stream:
        writer = Writer([stream])
        writer.manifest(ABOUT)
        writer.points(points)
        writer.ratios(compare(points))
        writer.details({"case": "storm", "data": details})
        if ended:
            writer.end()
    result = read_result(file)
    assert (result.name, result.bench, result.manifest) == ("store-1", "store", ABOUT)
    assert result.points == points
    assert result.ratios == compare(points)
    assert result.details == [{"case": "storm", "data": details}]
    assert (result.end is not None) == ended
    for line, one in zip(file.read_text().splitlines()[1:], points, strict=False):
        assert (json.loads(line)["median"], json.loads(line)["spread"]) == (one.median, one.spread)


def written(file: Path) -> list[str]:
    with file.open("w") as stream:
        writer = Writer([stream])
        writer.manifest(ABOUT)
        writer.points([theirs(1.0, 2.0)])
        writer.end()
    return file.read_text().splitlines(keepends=True)


def test_run_that_was_killed_while_it_wrote_keeps_what_is_there(tmp_path) -> None:
    file = tmp_path / "store-1.jsonl"
    lines = written(file)
    file.write_text("".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    result = read_result(file)
    assert (result.points, result.end) == ([theirs(1.0, 2.0)], None)


FOREIGN = {
    "not JSON": (["hello\n"], "line 1: not a result of rdzv bench"),
    "other JSON": (['{"a": 1}\n', '{"a": 2}\n'], "line 1: not a result"),
    "a list": (["[1]\n"], "line 1: not a result"),
    "without its manifest": (['{"record": "end"}\n', '{"record": "end"}\n'], "line 1: .* no manifest"),
    "with a hole": (["MANIFEST", "{\n", '{"record": "end"}\n'], "line 2: not a result"),
    "with a point of another kind": (["MANIFEST", '{"record": "point"}\n', '{"record": "end"}\n'], "line 2: "),
    "empty": ([], "it is empty"),
}


@pytest.mark.parametrize(("lines", "said"), FOREIGN.values(), ids=FOREIGN)
def test_file_of_another_kind_is_refused_by_name(lines, said, tmp_path) -> None:
    file = tmp_path / "store-1.jsonl"
    first = written(file)[0]
    file.write_text("".join(first if line == "MANIFEST" else line for line in lines))
    with pytest.raises(UsageError, match=f"store-1.jsonl.*{said}") as raised:
        read_result(file)
    assert "rdzv bench writes with --out" in raised.value.remedy


def test_directory_without_results_is_refused(tmp_path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="there are no results") as raised:
            read_results(directory)
        assert "rdzv bench all --out" in raised.value.remedy
    for name in ("b", "a"):
        written(tmp_path / f"{name}.jsonl")
    assert [result.name for result in read_results(tmp_path)] == ["a", "b"]
    with pytest.raises(UsageError, match="cannot be read"):
        read_result(tmp_path / "c.jsonl")


def test_lines_are_on_stdout_and_in_the_file_as_soon_as_measured(tmp_path, capsys) -> None:
    points = [point("mine", 1.0, 1.0), theirs(2.0, 2.0)]
    with Output("store", {"repeats": 2}, as_json=True, out=str(tmp_path / "new")) as output:
        output.case("64 nodes", points, details={"more": 1})
        assert output.file is not None
        assert read_result(output.file).points == points
        output.end("what the figures are")
    lines = capsys.readouterr().out.splitlines()
    records = [json.loads(line)["record"] for line in lines]
    assert records == ["manifest", "point", "point", "ratio", "details", "end"]
    assert output.file.read_text().splitlines() == lines
    assert output.file.parent == tmp_path / "new"
    result = read_result(output.file)
    assert result.details == [{"case": "64 nodes", "more": 1}]
    assert [asdict(ratio) for ratio in result.ratios] == [asdict(ratio) for ratio in compare(points)]


def test_table_and_caption_without_json(capsys) -> None:
    points = [point("mine", 1.0, 1.0), theirs(2.0, 2.0)]
    with Output("store", {}, as_json=False, out=None) as output:
        output.case("64 nodes", points)
        output.case("other", [], text="a table of its own")
        output.end("what the figures are")
    out = capsys.readouterr().out
    assert manifest_as_text(manifest("store", {})).splitlines()[0].partition(", load")[0] in out
    assert out.index(as_text("64 nodes", points, compare(points))) < out.index("a table of its own")
    assert out.endswith("what the figures are\n")
    assert output.file is None


def test_benchmark_that_breaks_keeps_what_it_measured(tmp_path, capsys) -> None:
    def measure() -> None:
        with Output("store", {}, as_json=True, out=str(tmp_path)) as output:
            output.case("64 nodes", [theirs(2.0, 2.0)])
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        measure()
    (result,) = read_results(tmp_path)
    assert (result.points, result.end) == ([theirs(2.0, 2.0)], None)


def test_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out: cannot write .*file"):
        Output("store", {}, as_json=True, out=str(tmp_path / "file"))


def test_what_is_missing_before_the_first_line_leaves_no_file(tmp_path) -> None:
    Output("store", {}, as_json=True, out=str(tmp_path))  # and then something else that is needed is not there
    assert list(tmp_path.iterdir()) == []


def test_run_that_was_killed_before_its_first_line_spoils_no_other(tmp_path) -> None:
    written(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").touch()
    assert [result.name for result in read_results(tmp_path)] == ["a"]
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(UsageError, match="it is empty"):
        read_results(tmp_path)


def test_secrets_of_a_backend_stay_at_home(monkeypatch) -> None:
    conf = "redis=password=hunter2 has 'hunter4' in it,ttl=3,auth_token=hunter3"
    monkeypatch.setattr("sys.argv", ["rdzv", "bench", "launch", f"--rdzv-conf={conf}"])
    about = manifest("launch", {"conf": [conf], "backends": {"redis": {"password": "hunter2", "ttl": "3"}}})
    assert "hunter" not in json.dumps(about)
    assert about["command"].endswith("password=***,ttl=3,auth_token=***'")
    assert about["options"]["backends"] == {"redis": {"password": "***", "ttl": "3"}}
