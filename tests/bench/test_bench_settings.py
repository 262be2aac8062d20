"""The settings of a benchmark: one declaration that makes flags, checks and manifest, and whom names stand for."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json

import pytest

from rdzv_launcher.bench.backends import at_native_store, shipped
from rdzv_launcher.bench.method.settings import add_flags, flag_of, read, setting
from rdzv_plugins.errors import UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.testing.find import find_harness

pytestmark = pytest.mark.thorough


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of each kind one."""

    repeats: int = setting(5, quick=1, metavar="N", minimum=1, help="runs (default {default})")
    sizes: tuple[int, ...] = setting((1, 8), quick=(1,), minimum=1, none=(), help="bytes (default {default})")
    which: tuple[str, ...] = setting(("a", "b"), choices=("a", "b", "c"), help="some of %(known)s (default {default})")
    grid: tuple[int, int] | None = setting((2, 4), quick=None, minimum=1, none=None, help="nodes and ranks")
    where: str = setting("", choices=("here", "there"), help="place")
    simulate: bool = setting(False, help="as threads")
    how: str = setting("", choices=("plain", "fast"), alone="plain", help="in which way")
    limit_s: float = setting(60.0, metavar="SECONDS", minimum=1, maximum=3600, help="of a run (default {default})")
    delay_ms: float = setting(0.0, metavar="MS", minimum=0, help="of a round trip")
    warm_up: bool = setting(True, quick=False)

    def __post_init__(self) -> None:
        if self.repeats == 13:
            raise UsageError("--repeats=13: bad luck")


class Known:
    def __str__(self) -> str:
        return "a, b and c"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench")
    add_flags(made, Settings, "one run", {"known": Known()})
    return made


def asked(*arguments: str) -> Settings:
    return read(Settings, parser().parse_args(arguments))


def test_what_is_not_given_is_the_default_or_that_of_quick() -> None:
    assert asked() == Settings()
    quick = asked("--quick")
    assert quick == Settings(repeats=1, sizes=(1,), grid=None, warm_up=False)
    assert asked("--quick", "--repeats=3", "--grid=1x2") == dataclasses.replace(quick, repeats=3, grid=(1, 2))


def test_each_type_is_read_and_the_manifest_has_it() -> None:
    found = asked(
        "--sizes=8,1,8", "--which=c,a", "--grid=3x5", "--where=there", "--simulate", "--how=fast", "--limit=1.5",
        "--delay=2",
    )  # fmt: skip
    assert found == Settings(5, (8, 1), ("c", "a"), (3, 5), "there", True, "fast", 1.5, 2.0)
    assert asked("--how", "--repeats=2") == Settings(2, how="plain")
    assert asked("--sizes=none", "--grid=none") == Settings(sizes=(), grid=None)
    assert json.loads(json.dumps(dataclasses.asdict(found)))["grid"] == [3, 5]


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("--repeats=0", "--repeats=0: a whole number, at least 1, is needed"),
        ("--repeats=1.5", "--repeats=1.5: a whole number, at least 1, is needed"),
        ("--repeats=13", "--repeats=13: bad luck"),
        ("--sizes=1,,2", "--sizes=: a whole number, at least 1, is needed"),
        ("--which=a,d", "--which: 'd' is none of a, b, c"),
        ("--which=none", "--which: 'none' is none of a, b, c"),
        ("--grid=3", "--grid=3: two whole numbers, as in 4x8, or none"),
        ("--grid=0x3", "--grid=0: a whole number, at least 1, is needed"),
        ("--where=nowhere", "--where: 'nowhere' is none of here, there"),
        ("--limit=0.5", "--limit=0.5: a number of seconds from 1 to 3600 is needed"),
        ("--limit=inf", "--limit=inf: a number of seconds from 1 to 3600 is needed"),
        ("--limit=nan", "--limit=nan: a number of seconds from 1 to 3600 is needed"),
        ("--delay=-1", "--delay=-1: a number of milliseconds, at least 0, is needed"),
    ],
)
def test_what_cannot_be_is_refused_by_name(argument, error) -> None:
    with pytest.raises(UsageError) as raised:
        asked(argument)
    assert str(raised.value) == error


def test_help_says_defaults_and_looks_names_up_when_it_is_asked_for() -> None:
    text = " ".join(parser().format_help().split())
    for words in (
        "--repeats N runs (default 5)",
        "bytes (default 1,8)",
        "some of a, b and c (default a,b)",
        "--limit SECONDS of a run (default 60)",
        "--quick one run: to see that it works, not for figures",
    ):
        assert words in text
    assert "warm" not in text
    assert [flag_of(name) for name in ("limit_s", "delay_ms", "per_node")] == ["--limit", "--delay", "--per-node"]


def test_names_are_those_of_the_installed_backends_that_come_with_the_project() -> None:
    catalog = PluginHost.load().catalog
    assert {catalog.find(name).record.distribution for name in shipped()} == {"rdzv-plugins"}
    assert [*shipped()] == ["static", "c10d", "parallel", "tiered", "etcd"]
    assert at_native_store() == ("parallel", "tiered")


@pytest.mark.parametrize("name", shipped())
def test_what_a_harness_says_for_the_benchmark_is_there(name, tmp_path) -> None:
    """They are strings, which nothing else checks: a wrong one would only cost precision."""
    harness = find_harness(name)
    for module in harness.imports:
        importlib.import_module(module)
    for each in (harness, harness.afresh(tmp_path)):
        module, _, function = each.probe.partition(":")
        assert not module or callable(getattr(importlib.import_module(module), function))
    assert [*tmp_path.iterdir()] == []
