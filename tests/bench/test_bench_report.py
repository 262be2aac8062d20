"""`rdzv bench report`: charts and one page, of nothing but what was measured, which say what may not be compared."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from argparse import Namespace
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import pytest

from rdzv_launcher.bench.page import charts, family, write_charts
from rdzv_launcher.bench.points import Point, compare
from rdzv_launcher.bench.results import BenchOutput, Result, manifest, read_result
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import MissingDependency, UsageError

pytestmark = pytest.mark.thorough

STRANGER = "my-company <b id='x'>&amp; \"b\"</b> $x_2$"


def join(target: str, samples: tuple[float, ...], nodes: int, **more) -> Point:
    reference = target.startswith("torch")
    return Point(
        "rendezvous", f"{nodes} nodes", target, "join", "join", "s", samples, nodes, reference=reference, **more
    )


def write(file: Path, bench: str, cases: list[list[Point]], *, end=True, options=None, **about) -> None:
    about = manifest(bench, options or {}) | {"cpu": "A processor", "kernel": "Linux 9"} | about
    lines = [{"record": "manifest", **about}]
    for case in cases:
        lines += [{"record": "point", **asdict(each), "median": 0, "spread": 1} for each in case]
        lines += [{"record": "ratio", **asdict(each)} for each in compare(case)]
    lines += [{"record": "end", "load": "1"}] * end
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("results")
    targets = {STRANGER: (1.0, 1.0, 1.1), "noisy": (1.0, 4.0, 9.0), "torch-c10d": (4.0, 4.0, 4.2)}
    fast = [[join(target, samples, nodes) for target, samples in targets.items()] for nodes in (4, 16)]
    gone = join("torch-c10d", (), 64, unfinished="not within <60> s")
    write(directory / "rendezvous-1.jsonl", "rendezvous", [*fast, [gone]], options={"limit_s": 60, "ttl": 5})
    slow = [[join("parallel", (500.0, 501.0), nodes)] for nodes in (1024, 4096)]
    another = {"options": {"limit_s": 60, "ttl": 9}, "cpu": "Another <i>one</i>"}
    write(directory / "rendezvous-2.jsonl", "rendezvous", slow, end=False, **another)
    bar = Point("faults", "a worker is killed", "parallel", "recover", "time to recover", "s", (2.5,))
    write(directory / "faults-1.jsonl", "faults", [[bar]])
    write(directory / "launch-2.jsonl", "launch", [], end=False)
    return directory


class Page(HTMLParser):
    """The elements of a page, and the words in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))
        self.words += "|"

    def handle_data(self, data) -> None:
        self.words += data


@pytest.fixture(scope="module")
def page(directory) -> Page:
    assert tools.main(["bench", "report", str(directory)]) == 0
    return Page((directory / "report.html").read_text(encoding="utf-8"))


def test_page_needs_nothing_else_and_what_others_named_is_text_in_it(page) -> None:
    assert not {"script", "link", "iframe", "object", "form", "b", "i"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("href", "src", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), tag
    assert STRANGER in page.words
    assert "Another <i>one</i>" in page.words
    assert "not within <60> s" in page.words
    assert len([tag for tag, _ in page.elements if tag == "img"]) == 3


def test_page_has_medians_with_their_spread_and_ratios_with_their_reasons(page) -> None:
    for words in (
        "1.00 (1.00 .. 1.10) 0.250 of torch-c10d",
        "4.00 (1.00 .. 9.00)",
        "the runs of noisy differ by 9.00",
        "(500 .. 501)",
        "2.50 (2.50 .. 2.50)",
        "rendezvous-2 was INTERRUPTED",
        "launch-2: nothing was measured",
    ):
        assert words in " ".join(page.words.replace("|", "").split())
    assert "rendezvous-1 was INTERRUPTED" not in page.words


def test_page_marks_what_may_not_be_compared(page) -> None:
    for words in ("≠ cpu|A processor|Another <i>one</i>", "≠ ttl|5|9"):
        assert words in page.words
    assert "≠ kernel" not in page.words
    assert "≠ limit_s" not in page.words


def test_a_chart_is_an_svg_that_says_all_in_words(directory, tmp_path) -> None:
    (one,), (other,) = (
        write_charts(read_result(directory / f"rendezvous-{number}.jsonl"), tmp_path) for number in (1, 2)
    )
    assert one.name == "rendezvous-1-join.svg"
    words = ["".join(text.itertext()) for text in ET.parse(one).iter("{http://www.w3.org/2000/svg}text")]
    assert {STRANGER, "noisy", "torch-c10d (reference), no result from 64 on", "16", "Nodes"} <= {*words}
    assert "INTERRUPTED" not in " ".join(words)
    assert "INTERRUPTED" in other.read_text()


def test_the_same_result_gives_the_same_bytes_whatever_the_users_settings(directory, tmp_path) -> None:
    result = read_result(directory / "faults-1.jsonl")
    before = [file.read_bytes() for file in write_charts(result, tmp_path)]
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}):
        assert [file.read_bytes() for file in write_charts(result, tmp_path)] == before
    with pytest.raises(UsageError, match=r"recover\.svg"):
        write_charts(result, tmp_path / "nowhere")


def test_cases_of_one_family_are_a_curve_and_others_bars() -> None:
    cases = {"64 nodes": 64, "gloo, 1.4 s, 4x8": 4, "a worker is killed": None}
    points = [
        Point("store", case, "ours", "wall", "wall time", "s", (1.0, 2.0), nodes) for case, nodes in cases.items()
    ]
    assert [*map(family, points)] == ["N nodes", "gloo, 1.4 s, Nx8", "a worker is killed"]
    more = replace(points[0], case="16 nodes", nodes=16)
    for some, kinds in ((points, [""]), ([points[0], more], [""]), ([*points, more], ["", "-curves"])):
        assert [kind for kind, _ in charts(Result("x", {"bench": "store"}, some), "wall")] == kinds


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        (None, ["nowhere"], "nowhere"),
        (None, ["."], "*.jsonl"),
        ("a, b\n1, 2\n", ["."], "x.jsonl, line 1"),
        ('{"record": "manifest", "bench": "a"}\n', [".", "--to=no/r.html"], "no/"),
    ],
)
def test_wrong_use(text, arguments, named, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("x.jsonl").write_text(text)
    assert tools.main(["bench", "report", *arguments]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert named in said
    assert len(said.splitlines()) == 2  # with a remedy


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_without_what_draws(module, directory, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert tools.main(["bench", "report", str(directory)]) == MissingDependency.exit_code
    said = capsys.readouterr().err
    assert module in said
    assert "pip install 'rdzv-plugins[bench]'" in said
    with pytest.raises(MissingDependency):  # before anything is measured
        BenchOutput(Namespace(what="rendezvous", json=True, out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
