"""Which wheels a release has and how its changelog is written. `make wheels` builds and tries them."""

import itertools
import re
from importlib import import_module

import pytest
from kits import ROOT
from packaging.tags import cpython_tags
from packaging.utils import parse_wheel_filename


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Of release/, which is no package."""
    monkeypatch.syspath_prepend(ROOT / "release")


def test_every_python_on_every_platform_finds_one_wheel_and_it_is_the_one_that_is_tried() -> None:
    platforms = import_module("platforms")
    tags = {name: parse_wheel_filename(name)[3] for name in platforms.wheel_names("1.2.3")}
    assert len(tags) == 12
    for platform, python in itertools.product(platforms.PLATFORMS, (*platforms.PYTHONS, "3.14")):
        version = tuple(map(int, python.split(".")))
        here = set(cpython_tags(version, [f"cp{version[0]}{version[1]}"], [platform.tag]))
        assert [name for name, of in tags.items() if of & here] == [platforms.wheel_for(python, "1.2.3", platform)]
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert tuple(declared) == platforms.PYTHONS


def test_changelog_of_a_release_opens_the_next() -> None:
    released = import_module("prepare").released
    old = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n\n- The first.\n"
    new = released(old, "0.2.0", "2026-02-03")
    assert new == old.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n")
    for text, version in ((new, "0.3.0"), (old, "0.1.0")):  # nothing is unreleased; it has been released
        with pytest.raises(ValueError, match=r"Unreleased|has 0\.1\.0"):
            released(text, version, "2026-03-04")
