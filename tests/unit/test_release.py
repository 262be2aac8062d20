"""Which wheels a release has and how its changelog is written. `make wheels` builds and tries them."""

import itertools
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from packaging.tags import cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[2]
OURS = ("platforms", "prepare", "sdist", "version")


@pytest.fixture
def release(monkeypatch):
    """Imports a module of release/, which is no package."""
    monkeypatch.syspath_prepend(ROOT / "release")
    yield import_module
    for name in OURS:
        sys.modules.pop(name, None)


def test_every_python_on_every_platform_finds_one_wheel_and_it_is_the_one_that_is_tried(release) -> None:
    platforms = release("platforms")
    tags = {name: parse_wheel_filename(name)[3] for name in platforms.wheel_names("1.2.3")}
    assert len(tags) == 12
    later = (*platforms.PYTHONS, "3.14")
    for platform, python in itertools.product(platforms.PLATFORMS, later):
        version = tuple(map(int, python.split(".")))
        here = set(cpython_tags(version, [f"cp{version[0]}{version[1]}"], [platform.tag]))
        assert [name for name, of in tags.items() if of & here] == [platforms.wheel_for(python, "1.2.3", platform)]


def test_pythons_are_those_of_the_metadata(release) -> None:
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert tuple(declared) == release("platforms").PYTHONS


def test_changelog_of_a_release_opens_the_next(release) -> None:
    released = release("prepare").released
    old = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-01\n\n- The first.\n"
    new = released(old, "0.2.0", "2026-02-03")
    assert new == old.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n")
    with pytest.raises(ValueError, match=r"nothing under \[Unreleased\]"):
        released(new, "0.3.0", "2026-03-04")
    with pytest.raises(ValueError, match=r"has 0\.1\.0 already"):
        released(old, "0.1.0", "2026-03-04")
    assert "## [9.9.9] - 2026-03-04" in released((ROOT / "CHANGELOG.md").read_text(), "9.9.9", "2026-03-04")
