"""What is installed is read as importlib.metadata reads it, from folders and elsewhere, without importing it."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

import pytest

from rdzv_plugins.installed import distributions, entry_points, version_of

GROUP = "rdzv_test_group"
Install = Callable[..., Path]


def found(group: str = GROUP) -> list[tuple[str, str, str, str]]:
    """As we find it, which is as Python does."""
    ours = [(each.name, each.value, each.distribution.name, each.distribution.version) for each in entry_points(group)]
    pythons = importlib.metadata.entry_points(group=group)
    assert ours == [(e.name, e.value, e.dist.metadata["Name"], e.dist.version) for e in pythons if e.dist is not None]
    return ours


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes the metadata of a distribution into a folder, which is the last on the path so far."""

    def write(folder: str, info: str, points: str, *, head: str = "", file: str = "METADATA") -> Path:
        directory = tmp_path / folder / info
        directory.mkdir(parents=True)
        (directory / "entry_points.txt").write_text(points)
        if head:
            (directory / file).write_text(head)
        if str(directory.parent) not in sys.path:
            monkeypatch.setattr(sys, "path", [*sys.path, str(directory.parent)])
        return directory

    return write


def head(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: of the description\nVersion: 99\n"


def test_all_that_is_here_is_found_as_python_finds_it() -> None:
    names = {each.metadata["Name"] for each in importlib.metadata.distributions()}
    assert {each.name for each in distributions()} == names
    groups = importlib.metadata.entry_points().groups
    assert {"rdzv_plugins", "console_scripts"} <= groups
    assert all(found(group) for group in groups)
    assert version_of("Torch") == importlib.metadata.version("torch")
    assert version_of("no-such-distribution") == ""


def test_the_first_on_the_path_counts_however_its_name_is_written(install: Install) -> None:
    text = f"\n# a comment\n[other]\nx = y\n[{GROUP}]\r\n# one = m\r\n two=m : f \r\n\r\n[last]\nz = y\n"
    install("one", "Foo__Bar-1.0.dist-info", f"[{GROUP}]\nfirst = m:a.b\n", head=head("Foo__.Bar", "1.0"))
    install("two", "foo_bar-2.0.dist-info", f"[{GROUP}]\nsecond = m\n", head=head("foo-bar", "2.0"))
    install("two", "old.egg-info", f"[{GROUP}]\nold = m [extra]\n", head=head("old", "3"), file="PKG-INFO")
    install("two", "none-1.dist-info", "", head=head("none", "1"))
    install("three", "windows-1.dist-info", text, head=head("windows", "1").replace("\n", "\r\n"))
    assert found() == [
        ("first", "m:a.b", "Foo__.Bar", "1.0"),
        ("old", "m [extra]", "old", "3"),
        ("two", "m : f", "windows", "1"),
    ]
    assert version_of("foo-bar") == "1.0"


def test_an_install_that_was_cut_short_says_little_and_a_file_that_is_no_text_harms_nobody(install: Install) -> None:
    install("one", "foo-1.dist-info", f"[{GROUP}]\nno sign\n")
    install("one", "bare.dist-info", "")
    directory = install("one", "bar-1.dist-info", "")
    (directory / "entry_points.txt").write_bytes(f"[{GROUP}]\nok = m\nbad = \xff\n".encode("latin-1"))
    entries = {each.name: each for each in entry_points(GROUP)}
    assert entries.keys() == {"no sign", "ok", "bad"}
    entry = entries["no sign"]
    assert (entry.value, entry.distribution.name, entry.distribution.version) == ("", "", "")
    with pytest.raises(ValueError, match="names no module"):
        entry.load()


@pytest.mark.parametrize("kind", ["zip", "egg", "finder"])
def test_python_is_asked_where_distributions_may_be_elsewhere(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    points = f"[{GROUP}]\nthere = m\n"
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            archive.writestr("foo-1.dist-info/entry_points.txt", points)
            archive.writestr("foo-1.dist-info/METADATA", head("foo", "1"))
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "all.zip")])
    elif kind == "egg":
        install("foo-1-py3.egg", "EGG-INFO", points, head=head("foo", "1"), file="PKG-INFO")
    else:
        directory = install("elsewhere", "foo-1.dist-info", points, head=head("foo", "1"))
        monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(directory.parent)])

        def find(context: importlib.metadata.DistributionFinder.Context) -> object:
            there = importlib.metadata.DistributionFinder.Context(name=context.name, path=[str(directory.parent)])
            return PathFinder.find_distributions(there)

        finder = SimpleNamespace(find_spec=lambda *_: None, find_distributions=find)
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert found() == [("there", "m", "foo", "1")]
    assert version_of("foo") == "1"
    assert {each.name for each in distributions()} == {each.name for each in importlib.metadata.distributions()}
