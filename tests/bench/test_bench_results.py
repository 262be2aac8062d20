"""What `rdzv bench` prints and writes: tables, progress, the manifest, and JSON lines that are read as they were."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.bench.bench_kit import point, theirs

from rdzv_launcher.bench.points import Point, compare
from rdzv_launcher.bench.results import BenchOutput, manifest, number, read_result, read_results, share, table
from rdzv_plugins.errors import UsageError

TEXTS = st.text(max_size=8)
NUMBERS = st.floats(0, 1e9, allow_nan=False)
POINTS = st.builds(
    Point,
    *(TEXTS,) * 6,
    st.lists(NUMBERS, max_size=4).map(tuple),
    nodes=st.none() | st.integers(1, 9999),
    axis=TEXTS,
    reference=st.booleans(),
    unfinished=TEXTS,
)


def test_table_has_each_figure_with_its_spread_and_ratio() -> None:
    mine = point("mine", 0.5, 0.4, 0.45, nodes=64)
    gone = Point("test", "64 nodes", "torch-static", "join", "join", "s", reference=True, unfinished="needs too long")
    points = [mine, theirs(5.0, 4.0, 4.5), gone, point("mine", 1234.0, 1234.0, figure="loss", unfinished="gave up")]
    text = table("64 nodes", points, compare(points))
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "64 nodes",
        "join [s]",
        "mine 0.450 (0.400 .. 0.500) 0.100 of torch",
        "torch 4.50 (4.00 .. 5.00)",
        "torch-static needs too long",
        "join [s]",
        "mine 1,234 (1,234 .. 1,234)",
        "then gave up",
    ]


def test_numbers_have_three_digits_that_count_and_a_very_small_ratio_is_told_by_its_reciprocal() -> None:
    assert [number(value) for value in (0, 0.01234, 99.99, 123456)] == ["0", "0.0123", "100", "123,456"]
    ratios = [share(value, "torch") for value in (0.25, 1 / 1200, 0.0)]
    assert ratios == ["0.250 of torch", "torch has 1,200 times as much", "0 of torch"]


def test_manifest_has_what_a_figure_depends_on_and_no_secret_of_a_backend(monkeypatch) -> None:
    conf = "redis=password=hunter2 has 'hunter4' in it,ttl=3,auth_token=hunter3"
    monkeypatch.setattr("sys.argv", ["/somewhere/rdzv", "bench", "store", f"--rdzv-conf={conf}"])
    backends = {"redis": {"password": "hunter2", "ttl": "3"}}
    about = manifest("store", {"repeats": 5, "conf": [conf], "backends": backends}, {"rdzv-redis": "1.0"})
    assert (about["bench"], about["options"]["repeats"]) == ("store", 5)
    assert about["cores"] >= 1
    assert about["memory_gib"] > 0
    assert set(about["limits"]) == {"open_files", "processes", "somaxconn"}
    assert set(about["versions"]) >= {"rdzv-plugins", "torch", "rdzv-redis"}
    assert {"cpu", "kernel", "load", "started"} <= about.keys()
    assert "hunter" not in json.dumps(about)
    assert about["command"].startswith("rdzv bench store ")
    assert about["command"].endswith("password=***,ttl=3,auth_token=***'")
    assert about["options"]["backends"] == {"redis": {"password": "***", "ttl": "3"}}


def output(out: Path | None, **more: object) -> BenchOutput:
    """Of a benchmark whose options nobody has given."""
    args = {"what": "store", "json": False, "out": None if out is None else str(out), "repeats": 5} | more
    return BenchOutput(Namespace(**args))


@given(st.lists(POINTS, max_size=4), st.dictionaries(TEXTS, NUMBERS, min_size=1), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=40)
def test_results_are_read_as_they_were_written(tmp_path_factory, points, details, ended) -> None:
    file = written(tmp_path_factory.mktemp("results") / "store-1.jsonl", points, details, ended=ended)
    result = read_result(file)
    assert (result.name, result.bench, result.manifest["options"]) == ("store-1", "store", {"repeats": 5})
    assert (result.points, result.ratios) == (points, compare(points))
    assert result.details == [{"case": "storm", "data": details}]
    assert (result.end is not None) == ended
    for line, one in zip(file.read_text().splitlines()[1:], points, strict=False):
        assert (json.loads(line)["median"], json.loads(line)["spread"]) == (one.median, one.spread)


def written(file: Path, points: list[Point], details: dict | None = None, *, ended: bool = True) -> Path:
    """A result of these points."""
    printed = output(None, json=True)
    with file.open("w") as stream:
        printed._streams = [stream]
        with printed:
            printed.case("storm", points, details={"data": details} if details is not None else {})
            if ended:
                printed.end("")
    return file


def test_run_that_was_killed_while_it_wrote_keeps_what_is_there_and_spoils_no_other(tmp_path) -> None:
    file = tmp_path / "store-1.jsonl"
    lines = written(file, [theirs(1.0, 2.0)]).read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]) + lines[2][: len(lines[2]) // 2])
    (tmp_path / "before-its-first-line.jsonl").touch()
    (result,) = read_results(tmp_path)
    assert (result.points, result.end) == ([theirs(1.0, 2.0)], None)


FOREIGN = [
    (["hello\n"], "line 1"),
    (["[1]\n"], "line 1"),
    (['{"record": "end"}\n', '{"record": "end"}\n'], "line 1: .* not a manifest"),
    (['{"record": "manifest"}\n'], "line 1"),
    (["MANIFEST", "{\n", '{"record": "end"}\n'], "line 2"),
    (["MANIFEST", '{"record": "point"}\n', '{"record": "end"}\n'], "line 2"),
    ([], "empty file"),
]


@pytest.mark.parametrize(("lines", "said"), FOREIGN)
def test_file_of_another_kind_is_refused_by_name(lines, said, tmp_path) -> None:
    file = tmp_path / "store-1.jsonl"
    first = written(file, []).read_text().splitlines(keepends=True)[0]
    file.write_text("".join(first if line == "MANIFEST" else line for line in lines))
    for read, what in ((read_result, file), (read_results, tmp_path)):
        with pytest.raises(UsageError, match=f"store-1.jsonl.*{said}"):
            read(what)


def test_directory_without_results_is_refused(tmp_path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match=str(directory)):
            read_results(directory)
    with pytest.raises(UsageError, match=r"c\.jsonl"):
        read_result(tmp_path / "c.jsonl")


def test_lines_are_on_stdout_and_in_the_file_as_soon_as_measured(tmp_path, capsys) -> None:
    points = [point("mine", 1.0, 1.0), theirs(2.0, 2.0)]
    with output(tmp_path / "new", json=True) as both:
        both.case("64 nodes", points, details={"more": 1})
        (file,) = (tmp_path / "new").glob("store-*.jsonl")
        assert read_result(file).points == points
        both.end("what the figures are")
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["record"] for line in lines] == ["manifest", "point", "point", "ratio", "details", "end"]
    assert file.read_text().splitlines() == lines
    assert read_result(file).details == [{"case": "64 nodes", "more": 1}]
    assert [each.suffix for each in file.parent.iterdir() if each != file] == [".svg"]


def test_benchmark_that_breaks_keeps_what_it_measured(tmp_path) -> None:
    output(tmp_path, what="faults")  # breaks before its first line, and leaves no file
    with pytest.raises(OSError, match="broken"), output(tmp_path) as broken:  # noqa: PT012
        broken.case("64 nodes", [theirs(2.0, 2.0)])
        raise OSError("broken")
    (result,) = read_results(tmp_path)
    assert (result.points, result.end) == ([theirs(2.0, 2.0)], None)
