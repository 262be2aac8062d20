"""Nothing stands in docs/explanation/performance.md that the results beside it do not have."""

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def generator(tmp_path, monkeypatch) -> ModuleType:
    """docs/performance.py, at a copy of the page and its results."""
    spec = importlib.util.spec_from_file_location("performance", DOCS / "performance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copy(module.PAGE, tmp_path / "performance.md")
    shutil.copytree(module.FIGURES, tmp_path / "performance")
    monkeypatch.setattr(module, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(module, "FIGURES", tmp_path / "performance")
    return module


def test_page_is_what_its_results_say(generator) -> None:
    assert generator.main(["--check"]) == 0


def test_figure_that_was_changed_by_hand_is_found_and_written_again(generator) -> None:
    right = generator.PAGE.read_text()
    (figure, *_) = re.findall(r"\| (\d[\d.]+) \(", right)
    generator.PAGE.write_text(right.replace(f"| {figure} (", "| 0.00001 (", 1))
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.PAGE.read_text() == right


def test_results_of_another_run_are_taken_over(generator, tmp_path) -> None:
    results = tmp_path / "bench"
    results.mkdir()
    for file in generator.FIGURES.iterdir():
        bench, dash, rest = file.name.partition("-")
        name = f"{bench}-20261121-000000-{rest}" if dash else f"{file.stem}-20261121-000000.jsonl"
        shutil.copy(file, results / name)
    before = {file.name: file.read_bytes() for file in generator.FIGURES.iterdir()}
    assert generator.main([str(results)]) == 0
    assert {file.name: file.read_bytes() for file in generator.FIGURES.iterdir()} == before
    store = results / "store-20261121-000000.jsonl"
    store.write_text("".join(store.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(SystemExit, match="store-20261121-000000 was interrupted"):
        generator.main([str(results)])
    assert {file.name: file.read_bytes() for file in generator.FIGURES.iterdir()} == before
