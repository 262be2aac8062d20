"""`rdzv bench report`: one page, of nothing but what was measured, that says what may not be compared."""

import base64
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rdzv_launcher.bench.charts.style import share
from rdzv_launcher.bench.method.manifest import manifest
from rdzv_launcher.bench.method.points import Point, Ratio, compare
from rdzv_launcher.bench.method.results import Writer
from rdzv_launcher.bench.report.page import write_report
from rdzv_launcher.bench.report.text import as_text
from rdzv_launcher.tools import cli as tools

pytestmark = pytest.mark.thorough

STRANGER = "my-company <b id='x'>&amp; \"b\"</b>"
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """What is in a page: all text, its elements, its tables and its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self.marked: list[list[str]] = []
        self.style = ""
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
            if dict(attributes).get("class") == "differs":
                self.marked.append(self.rows[-1])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("h2", "h3", "li", "p", "figcaption"):
            self.words.append("")

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if "style" in self.open:
            self.style += data
        elif "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        elif self.words:
            self.words[-1] += data

    @property
    def pictures(self) -> list[ET.Element]:
        sources = [attributes["src"] for tag, attributes in self.elements if tag == "img"]
        assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
        return [ET.fromstring(base64.b64decode(source.partition(",")[2])) for source in sources]


def points(bench: str, figure: str, title: str, samples: dict, case="4 nodes", nodes=None, **more) -> list[Point]:
    return [
        Point(bench, case, target, figure, title, "s", found, nodes, reference=target == "torch-c10d", **more)
        for target, found in samples.items()
    ]


def write(file: Path, bench: str, cases: list[list[Point]], *, end=True, options=None, **about) -> None:
    with file.open("w") as stream:
        writer = Writer([stream])
        writer.manifest(manifest(bench, options or {}) | {"cpu": "A processor", "kernel": "Linux 9"} | about)
        for case in cases:
            writer.points(case)
            writer.ratios(compare(case))
        if end:
            writer.end()


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("results")
    fast = [
        points(
            "rendezvous", "join", "join",
            {STRANGER: (1.0, 1.0, 1.1), "noisy": (1.0, 4.0, 9.0), "torch-c10d": (4.0, 4.0, 4.2)},
            f"{nodes} nodes", nodes,
        )
        for nodes in (4, 16)
    ]  # fmt: skip
    gone = Point("rendezvous", "64 nodes", "torch-c10d", "join", "join", "s", (), 64, reference=True,
                 unfinished="not within <60> s")  # fmt: skip
    write(directory / "rendezvous-1.jsonl", "rendezvous", [*fast, [gone]], options={"limit_s": 60, "ttl": 5})
    slow = [
        points("rendezvous", "join", "join", {"parallel": (500.0, 501.0)}, f"{nodes} nodes", nodes)
        for nodes in (1024, 4096)
    ]
    write(directory / "rendezvous-2.jsonl", "rendezvous", slow, end=False, options={"limit_s": 60, "ttl": 9},
          cpu="Another <i>one</i>")  # fmt: skip
    write(directory / "faults-1.jsonl", "faults", [
        points("faults", "recover", "time to recover", {"parallel": (2.5,)}, "a worker is killed")
    ])  # fmt: skip
    return directory


@pytest.fixture(scope="module")
def page(directory) -> Page:
    file = directory / "report.html"
    assert write_report(directory, file) == file
    return Page(file.read_text(encoding="utf-8"))


def cell(page: Page, *texts: str) -> str:
    """The cell that holds all of these texts."""
    (found,) = {each for row in page.rows for each in row if all(text in each for text in texts)}
    return found


def test_it_needs_nothing_else(page) -> None:
    assert not {"script", "link", "iframe", "object", "base", "form"} & {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("href", "src", "srcset", "action"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), (tag, value)
    assert "url(" not in page.style
    assert "@import" not in page.style
    assert "prefers-color-scheme: dark" in page.style
    assert "@media print" in page.style
    (policy,) = (a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; img-src data:;")
    identifiers = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {a["href"][1:] for tag, a in page.elements if tag == "a"} == identifiers == {
        "bench-rendezvous", "bench-faults"
    }  # fmt: skip


def test_what_others_named_is_text(page) -> None:
    assert not {"b", "i"} & {tag for tag, _ in page.elements}
    assert any(STRANGER in row for row in page.rows)
    assert any("Another <i>one</i>" in row for row in page.rows)
    assert any("torch-c10d, 64 nodes; join: not within <60> s" in words for words in page.words)


def test_results_of_one_benchmark_have_charts_with_the_same_axes(page) -> None:
    recover = page.pictures[-1]
    assert "parallel" in texts(recover)
    one, other = page.pictures[:2]
    for picture in (one, other):
        assert {"4", "16", "64", "1,024", "4,096", "100"} <= set(texts(picture))
    assert {STRANGER, "noisy", "torch-c10d (reference)", "no result"} <= set(texts(one))
    assert "INTERRUPTED" not in " ".join(texts(one))
    assert "INTERRUPTED" in " ".join(texts(other))
    assert len(page.pictures) == 3
    assert [a["alt"].partition(":")[0] for tag, a in page.elements if tag == "img"] == [
        "rendezvous-1", "rendezvous-2", "faults-1",
    ]  # fmt: skip


def texts(picture: ET.Element) -> list[str]:
    return ["".join(each.itertext()) for each in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_medians_have_their_spread_and_ratios_their_reasons(page) -> None:
    assert ["4 nodes", STRANGER, "1.00 (1.00 .. 1.10; 3 runs)0.250 of torch-c10d (0.250 .. 0.262)", "-"] in page.rows
    refused = "no ratio to torch-c10d: the runs of noisy differ by 9.00 among themselves, the two by 1.00"
    assert ["noisy", "4.00 (1.00 .. 9.00; 3 runs)" + refused, "-"] in page.rows
    assert ["64 nodes", "torch-c10d (reference)", "no result: not within <60> s", "-"] in page.rows
    assert ["a worker is killed", "parallel", "2.50 (1 run)"] in page.rows
    assert ["1024 nodes", "parallel", "-", "500 (500 .. 501; 2 runs)"] in page.rows


def test_the_first_screen_has_a_chart(page) -> None:
    tags = [tag for tag, _ in page.elements]
    assert "table" not in tags[: tags.index("img")]


@pytest.mark.parametrize(
    ("ratio", "spread", "says"),
    [
        (0.25, (0.2, 0.3), "0.250 of torch (0.200 .. 0.300)"),
        (0.01, (), "0.0100 of torch"),
        (1 / 1200, (1 / 1300, 1 / 1100), "torch has 1,200 times as much (1,100 .. 1,300)"),
        (1 / 1200, (), "torch has 1,200 times as much"),
        (0.0, (0.0, 0.0), "0 of torch (0 .. 0)"),
    ],
)
def test_a_very_small_ratio_is_told_by_its_reciprocal(ratio, spread, says) -> None:
    assert share(ratio, "torch", *spread) == says
    found = Ratio("b", "c", "f", "mine", "torch", ratio, *(spread or (None, None)))
    assert says.partition(" (")[0] in as_text("c", [points("b", "f", "t", {"mine": (1.0, 1.0)})[0]], [found])


def test_what_differs_is_marked(page) -> None:
    marked = {row[0]: row[1:] for row in page.marked}
    assert marked == {
        "≠ cpu": ["A processor", "Another <i>one</i>"],  # two machines: the third result is of the first
        "≠ ttl": ["5", "9"],
    }
    assert ["kernel", "Linux 9", "Linux 9"] in page.rows
    assert ["limit s", "60", "60"] in page.rows
    machines = {row[0]: row[1] for row in page.rows if row[0] in ("rendezvous-1", "rendezvous-2", "faults-1")}
    assert machines == {"rendezvous-1": "A", "rendezvous-2": "B", "faults-1": "A"}


def test_an_interrupted_run_says_so(page) -> None:
    states = {row[0]: row[-1] for row in page.rows if row[0] in ("rendezvous-1", "rendezvous-2", "faults-1")}
    assert states["rendezvous-1"] == states["faults-1"] == "complete"
    assert states["rendezvous-2"].startswith("INTERRUPTED")
    assert any(words.startswith("rendezvous-2 was INTERRUPTED") for words in page.words)


def test_a_run_that_was_killed_while_it_wrote(tmp_path) -> None:
    write(tmp_path / "launch-1.jsonl", "launch", [points("launch", "first_line", "first line", {"parallel": (1, 2)})])
    whole = (tmp_path / "launch-1.jsonl").read_text()
    (tmp_path / "launch-1.jsonl").write_text(whole[:-30])
    (tmp_path / "launch-2.jsonl").write_text(whole.splitlines()[0] + "\n")
    page = Page(write_report(tmp_path, tmp_path / "r.html").read_text())
    assert any("INTERRUPTED" in words for words in page.words)
    assert "launch-2: nothing was measured." in page.words
    assert cell(page, "1.50 (1.00 .. 2.00; 2 runs)")


def test_as_a_command(directory, tmp_path, capsys) -> None:
    page = tmp_path / "page.html"
    assert tools.main(["bench", "report", str(directory), f"--to={page}"]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    # it holds nothing of the time or the place at which it was made
    assert page.read_text() == (directory / "report.html").read_text()


@pytest.mark.parametrize(
    ("files", "arguments", "expected"),
    [
        ({}, ["nowhere"], "there is no directory nowhere"),
        ({}, ["."], "there are no results (*.jsonl) in ."),
        ({"x.jsonl": "a, b\n1, 2\n"}, ["."], "x.jsonl, line 1: not a result of rdzv bench"),
        ({"x.jsonl": '{"loss": 0.5}\n'}, ["."], "x.jsonl, line 1: not a result of rdzv bench: 'record' is not there"),
        ({"x.jsonl": '{"record": "manifest"}\n'}, ["."], "line 1: not a result of rdzv bench: it does not say of"),
        ({"x.jsonl": ""}, ["."], "x.jsonl: it is empty"),
        ({"x.jsonl": '{"record": "manifest", "bench": "a"}\n'}, [".", "--to=no/r.html"], "cannot write the report no/"),
    ],
)  # fmt: skip
def test_wrong_use(files, arguments, expected, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    assert tools.main(["bench", "report", *arguments]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert len(said.splitlines()) == 2  # with a remedy


def test_a_directory_is_needed(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        tools.main(["bench", "report"])
    assert caught.value.code == 2
    assert "DIR" in capsys.readouterr().err


def test_without_matplotlib(directory, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert tools.main(["bench", "report", str(directory)]) == 69
    assert "pip install 'rdzv-plugins[bench]'" in capsys.readouterr().err


def test_benchmarks_need_neither_pytest_nor_charts() -> None:
    """What the extra brings is enough to measure; and who wants no charts needs not even that."""
    code = """if True:
        import importlib, pkgutil, sys
        sys.modules["pytest"] = sys.modules["matplotlib"] = None
        import rdzv_launcher.bench
        for module in pkgutil.walk_packages(rdzv_launcher.bench.__path__, "rdzv_launcher.bench."):
            if not module.name.endswith((".bars", ".curves", ".drawing", ".frame", "._load")):  # they draw
                importlib.import_module(module.name)
                print(module.name.removeprefix("rdzv_launcher.bench."))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert {"backends", "rendezvous.bench", "report.page", "charts.plan"} < set(done.stdout.split())
