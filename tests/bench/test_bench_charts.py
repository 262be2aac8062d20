"""The charts of a result: what is in them, that it is all of the figures, and that nothing hides anything else."""

import itertools
import math
import struct
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from rdzv_launcher.bench.charts.drawing import drawn
from rdzv_launcher.bench.charts.files import draw, require_matplotlib
from rdzv_launcher.bench.charts.plan import extent, family, plan
from rdzv_launcher.bench.charts.style import log_ticks, plain, styles
from rdzv_launcher.bench.method.manifest import manifest
from rdzv_launcher.bench.method.points import Point
from rdzv_launcher.bench.method.results import Result, Writer, read_result
from rdzv_launcher.bench.report.output import Output
from rdzv_plugins.errors import MissingDependency, UsageError

pytestmark = pytest.mark.thorough

NODES = (4, 64, 1024)
STRANGER = 'my-company <a&b> "$x_2$" \x1b[1m会'
SHOWN = 'my-company <a&b> "$x_2$" [1m会'
LONG = "my-company-rendezvous-over-zookeeper-with-a-name-that-takes-all-the-room-that-there-is"
SHIPPED = ("static", "c10d", "etcd", "parallel", "tiered")


def point(case="4 nodes", target="parallel", samples=(1.0, 2.0, 4.0), nodes=None, **more) -> Point:
    more = {"bench": "rendezvous", "figure": "join", "title": "time to join", "unit": "s"} | more
    return Point(case=case, target=target, samples=tuple(samples), nodes=nodes, **more)


def curve(target: str, per_node: float, nodes=NODES, stops_at: int | None = None, **more) -> list[Point]:
    """Three runs with each number of nodes, that differ by a factor 2 to each side."""
    points = []
    for count in nodes:
        stopped = stops_at is not None and count >= stops_at
        samples = () if stopped else tuple(per_node * count * factor for factor in (0.5, 1, 2))
        why = "not within 60 s" if stopped else ""
        points.append(point(f"{count} nodes", target, samples, count, unfinished=why, **more))
    return points


def write(file: Path, points: list[Point], *, bench="rendezvous", end=True, **about) -> Result:
    with file.open("w") as stream:
        writer = Writer([stream])
        writer.manifest(manifest(bench, {}) | {"cpu": "A certain processor", "versions": {"torch": "7.8.9"}} | about)
        writer.points(points)
        if end:
            writer.end()
    return read_result(file)


def crowd(count: int) -> list[Point]:
    """So many targets, two of which stop; the last one has a single point."""
    names = [*SHIPPED, "my-company-rendezvous-over-zookeeper-and-more", "torch-c10d", "torch-static", "redis"]
    nodes = (4, 16, 64, 256, 1024, 4096)
    points = []
    for index, name in enumerate(names[:count]):
        mine = curve(name, 0.01 * 1.5**index, nodes, 256 if index in (1, 6) else None, reference="torch" in name)
        points += mine if name != "redis" else mine[:1]
    return points


def bars() -> list[Point]:
    points = []
    for case in ("an agent is killed", "an agent is frozen"):
        more = {"bench": "faults", "figure": "recover", "title": "time to recover"}
        points += [point(case, name, (2.0, 3.0, 5.0), **more) for name in (*SHIPPED, LONG)]
        points.append(point(case, "torch-c10d", (20.0, 30.0, 41.0), reference=True, **more))
        why = "did not recover within 60 s: " + "the agents gave up, and said why at length. " * 4
        points.append(point(case, "torch-static", (), reference=True, unfinished=why, **more))
    return points


def panels() -> list[Point]:
    return [
        each
        for kind, clients in (("storm", (200,)), ("barrier", (100, 400)), ("one key (NCCL)", (100, 400)))
        for count in clients
        for target, cost in (("ours", 4.0), ("libuv", 9.0), ("echo", 2.0))
        for each in [
            point(
                f"{kind}, {count} clients", target, (cost, cost * 1.2), count, axis="clients", bench="store",
                figure="cpu_per_request", title="processor time of the server for each request", unit="us",
            )
        ]
    ]  # fmt: skip


def svg_texts(file: Path) -> list[str]:
    texts = ET.fromstring(file.read_text()).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(each.itertext()) for each in texts]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    points = [
        *curve("parallel", 0.001),
        *curve(STRANGER, 0.01),
        *curve("torch-c10d", 0.4, stops_at=1024, reference=True),
        *curve("parallel", 0, figure="idle", title="requests", unit="requests"),
        *curve(STRANGER, 3, figure="idle", title="requests", unit="requests"),
    ]
    return write(tmp_path_factory.mktemp("result") / "rendezvous-1.jsonl", points)


@pytest.fixture(scope="module")
def files(result, tmp_path_factory) -> list[Path]:
    return draw(result, tmp_path_factory.mktemp("charts"))


def test_each_figure_is_a_png_and_an_svg(files) -> None:
    assert [file.name for file in files] == [
        "rendezvous-1-join.png",
        "rendezvous-1-join.svg",
        "rendezvous-1-idle.png",
        "rendezvous-1-idle.svg",
    ]
    for file in files[::2]:
        data = file.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert (width, height > 700) == (8 * 144, True)
        pixels = matplotlib.image.imread(file)
        assert pixels[0, 0].tolist() == [1, 1, 1, 1]  # on white
        assert 0.01 < (pixels[:, :, :3].min(axis=2) < 0.5).mean() < 0.3  # and not empty


def test_an_svg_says_all_in_words(files) -> None:
    texts = svg_texts(files[1])
    for expected in ("Time to join [seconds]", "Nodes", "4", "64", "1,024", "parallel", SHOWN, "no result"):
        assert expected in texts
    assert "torch-c10d (reference)" in texts
    together = " ".join(texts)
    for expected in ("rdzv bench rendezvous: time to join", "A certain processor", "torch 7.8.9", "3 runs of each"):
        assert expected in together
    assert "torch-c10d: no result from 1,024 nodes on: not within 60 s" in together
    assert "INTERRUPTED" not in together
    assert not any("10^" in text or "mathdefault" in text for text in texts)


def test_the_figures_are_where_they_belong(result) -> None:
    (join, _idle) = plan(result.points)
    with drawn(join, result) as figure:
        axes = next(axes for axes in figure.axes if axes.get_xlabel())
        assert axes.get_xscale() == axes.get_yscale() == "log"
        lines = {each.get_label(): each for each in axes.containers}
        assert list(lines) == ["parallel", STRANGER, "torch-c10d"]
        for name, per_node, nodes in (("parallel", 0.001, NODES), ("torch-c10d", 0.4, NODES[:2])):
            line, _caps, (spread,) = lines[name].lines
            assert line.get_ydata() == pytest.approx([per_node * count for count in nodes])
            assert all(abs(math.log(x / count)) < 0.2 for x, count in zip(line.get_xdata(), nodes, strict=True))
            ends = [(low[1], high[1]) for low, high in spread.get_segments()]
            assert ends == [pytest.approx((per_node * count / 2, per_node * count * 2)) for count in nodes]


def test_who_did_not_finish_has_an_open_marker_where_it_stopped(result) -> None:
    with drawn(plan(result.points)[0], result) as figure:
        (strip,) = (axes for axes in figure.axes if not axes.get_xlabel())
        (marker,) = strip.lines
        assert marker.get_markerfacecolor() == "white"
        assert marker.get_xdata()[0] == pytest.approx(1024, rel=0.2)
        assert marker.get_color() == styles(["parallel", STRANGER, "torch-c10d"])["torch-c10d"].colour


def test_equal_figures_stand_side_by_side(tmp_path) -> None:
    result = write(tmp_path / "r.jsonl", [each for name in ("a", "b", "c") for each in curve(name, 1)])
    with drawn(plan(result.points)[0], result) as figure:
        (axes,) = figure.axes
        places = [axes.transData.transform(line.lines[0].get_xydata()) for line in axes.containers]
        for one, other in itertools.pairwise(places):
            assert all(5 < x - before < 30 for (before, _), (x, _) in zip(one, other, strict=True))  # pixels


def test_nothing_at_all_is_shown_on_a_logarithmic_axis(files, result) -> None:
    assert "0" in svg_texts(files[3])
    with drawn(plan(result.points)[1], result) as figure:
        (axes,) = figure.axes
        bottom, top = axes.transData.transform([(4, 0), (4, 12)])[:, 1]
        assert axes.bbox.y0 < bottom < top < axes.bbox.y1


@pytest.mark.parametrize("targets", [1, 3, 9])
def test_no_text_hides_another_in_curves(tmp_path, targets) -> None:
    result = write(tmp_path / "r.jsonl", crowd(targets), cpu="A processor with a long name, " * 6)
    (chart,) = plan(result.points)
    with drawn(chart, result) as figure:
        assert_legible(figure)
        assert len(figure.legends[0].get_texts()) == targets


@pytest.mark.parametrize("points", [bars(), panels()], ids=["bars", "panels"])
def test_no_text_hides_another_in(tmp_path, points) -> None:
    result = write(tmp_path / "r.jsonl", points, end=False)
    for chart in plan(result.points):
        with drawn(chart, result) as figure:
            assert_legible(figure)
            assert "INTERRUPTED: this run" in " ".join(text.get_text() for text in figure.texts)


def assert_legible(figure) -> None:
    """All texts are in the picture and large enough; none touches another one, or the legend the axes."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text().strip()]
    boxes = [(each.get_text(), Text.get_window_extent(each, renderer)) for each in texts]
    assert len(boxes) > 8
    assert min(each.get_size() for each in texts) >= 9
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.width, text
        assert box.y1 <= figure.bbox.height, text
    for (text, box), (other, its) in itertools.combinations(boxes, 2):
        assert not overlap(box, its), f"{text!r} and {other!r}"
    for legend, axes in itertools.product(figure.legends, figure.axes):
        assert not overlap(legend.get_window_extent(renderer), axes.get_tightbbox(renderer))


def overlap(one, other) -> bool:
    return min(one.x1, other.x1) - max(one.x0, other.x0) > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1


def test_bars_and_what_did_not_recover(tmp_path) -> None:
    result = write(tmp_path / "faults-1.jsonl", bars(), bench="faults")
    (chart,) = plan(result.points)
    with drawn(chart, result) as figure:
        (axes,) = figure.axes
        assert axes.get_position().width > 0.6
        found = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        assert [patch.get_width() for patch in found] == [3.0] * 6 + [30.0] + [3.0] * 6 + [30.0]
        assert all(patch.get_x() == 0 for patch in found)
        assert [bool(patch.get_hatch()) for patch in found] == ([False] * 6 + [True]) * 2
        ends = {tuple(end[0] for end in each.get_segments()[0]) for each in axes.collections}
        assert ends == {(2.0, 5.0), (20.0, 41.0)}
        written = [text.get_text() for text in axes.texts]
        assert written.count("3.00") == 12
        assert written.count("30.0") == 2
        assert sum(text.startswith("no result: did not recover within 60 s") for text in written) == 2
        assert {"an agent is killed", "an agent is frozen"} < set(written)
        assert axes.get_xlabel() == "Time to recover [seconds]"
        # cut in its row, whole below
        assert "gave up, and said why at length. the agents" in " ".join(text.get_text() for text in figure.texts)


def test_what_is_far_apart_is_not_a_bar(tmp_path) -> None:
    result = write(tmp_path / "r.jsonl", [point(target="a", samples=(0.01, 0.02)), point(target="b", samples=(9, 10))])
    with drawn(plan(result.points)[0], result) as figure:
        (axes,) = figure.axes
        assert axes.get_xscale() == "log"
        assert not axes.containers or not [patch for patch in axes.patches if patch.get_width()]
        assert_legible(figure)


def test_what_was_run_once_says_so(tmp_path) -> None:
    for points in ([point(samples=(1,))], [point(f"{n} nodes", samples=(n,), nodes=n) for n in NODES]):
        result = write(tmp_path / "r.jsonl", points)
        with drawn(plan(result.points)[0], result) as figure:
            texts = " ".join(text.get_text() for text in figure.texts)
            assert "One run of each: how far runs differ is not known." in texts
            assert "Medians" not in texts


def test_what_becomes_curves_and_what_bars() -> None:
    bar, curves = plan(panels())
    assert (bar.name, bar.kind) == ("cpu_per_request", "bars")
    assert list(bar.panels) == ["storm, 200 clients", "barrier, 400 clients", "one key (NCCL), 400 clients"]
    assert (curves.name, curves.kind, curves.axis) == ("cpu_per_request-curves", "curves", "clients")
    assert list(curves.panels) == ["barrier, N clients", "one key (NCCL), N clients"]
    assert [chart.kind for chart in plan(curve("parallel", 1, nodes=(4,)))] == ["bars"]
    assert [chart.name for chart in plan(curve("parallel", 1))] == ["join"]
    assert plan(curve("parallel", 1, stops_at=0)) == []  # nobody was measured


@pytest.mark.parametrize(
    ("case", "nodes", "axis", "expected"),
    [
        ("64 nodes", 64, "nodes", ""),
        ("1 node", 1, "nodes", ""),
        ("storm, 8,000 clients", 8000, "clients", "storm, N clients"),
        ("8 nodes x 8 ranks, 2 ms", 8, "nodes", "N nodes x 8 ranks, 2 ms"),
        ("16 ranks on each of 4 nodes", 4, "nodes", "16 ranks on each of N nodes"),
        ("a worker is killed", None, "nodes", "a worker is killed"),
        ("gloo, 1.4 s, 4x8", 4, "nodes", "gloo, 1.4 s, Nx8"),
    ],
)
def test_cases_of_one_family(case, nodes, axis, expected) -> None:
    assert family(point(case, nodes=nodes, axis=axis)) == expected


def test_targets_differ_and_keep_their_look() -> None:
    names = [*SHIPPED, "torch-c10d", "torch-static", "a", "b", "c", "d"]
    looks = styles(names)
    assert len({each.colour for each in list(looks.values())[:8]}) == 8
    assert len({each.marker for each in looks.values()}) == len(names)
    assert len({(each.colour, each.line) for each in looks.values()}) == len(names)
    alone = styles(["stranger", "torch-c10d"])
    assert alone["torch-c10d"] == looks["torch-c10d"] != alone["stranger"]


def test_a_target_looks_the_same_in_all_charts_of_a_result(tmp_path) -> None:
    only_one = curve("b", 1, figure="loss", title="time to notice a loss")
    result = write(tmp_path / "r.jsonl", [*curve("a", 1), *curve("b", 1), *only_one])
    colours = []
    for chart in plan(result.points):
        with drawn(chart, result) as figure:
            colours.append(figure.axes[0].containers[-1].lines[0].get_color())
    assert colours[0] == colours[1]


def test_ticks_are_plain_numbers() -> None:
    assert log_ticks(0.004, 300) == [0.01, 0.1, 1, 10, 100]
    assert log_ticks(3, 200) == [3, 10, 30, 100]
    assert log_ticks(4.6, 7.8) == [5, 6, 7]
    assert len(log_ticks(1e-9, 1e9)) <= 9
    assert [plain(tick) for tick in (0.001, 0.5, 16, 4096, 100_000, 3e6)] == [
        "0.001", "0.5", "16", "4,096", "100,000", "3M",
    ]  # fmt: skip


def test_charts_of_several_results_can_have_the_same_axes(tmp_path) -> None:
    small = write(tmp_path / "a.jsonl", curve("parallel", 0.001, nodes=(4, 16)))
    large = write(tmp_path / "b.jsonl", curve("parallel", 5))
    charts = [plan(small.points)[0], plan(large.points)[0]]
    limits = []
    for result, chart in zip((small, large), charts, strict=True):
        with drawn(chart, result, extent(charts)) as figure:
            limits.append((figure.axes[0].get_xlim(), figure.axes[0].get_ylim()))
    assert limits[0] == limits[1]
    assert limits[0][0][0] < 4 < 1024 < limits[0][0][1]
    assert limits[0][1][0] < 0.002 < 10240 < limits[0][1][1]


def test_the_same_result_gives_the_same_bytes_whatever_the_users_settings(result, files, tmp_path) -> None:
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.fonttype": "path"}):
        again = draw(result, tmp_path)
        assert matplotlib.rcParams["font.size"] == 30
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


def test_without_matplotlib(result, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependency, match="matplotlib") as caught:
        require_matplotlib()
    assert "pip install 'rdzv-plugins[bench]'" in caught.value.remedy
    with pytest.raises(MissingDependency):
        draw(result, tmp_path)
    with pytest.raises(MissingDependency):  # before anything is measured
        Output("rendezvous", {}, as_json=True, out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_chart_that_cannot_be_written(result, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"cannot write the chart .*join\.png"):
        draw(result, tmp_path / "nowhere")
