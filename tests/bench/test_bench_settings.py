"""The settings of a benchmark: one declaration that makes flags and checks; and what each benchmark refuses."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys

import pytest

from rdzv_launcher.bench.backends import at_native_store, shipped
from rdzv_launcher.bench.method.settings import add_flags, read, setting
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import MissingDependency, UnknownBackend, UsageError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.testing.find import find_harness


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


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="bench")
    add_flags(made, Settings, "one run", {"known": "a, b and c"})
    return made


def asked(*arguments: str) -> Settings:
    return read(Settings, parser().parse_args(arguments))


def test_what_is_not_given_is_the_default_or_that_of_quick() -> None:
    assert asked() == Settings()
    quick = asked("--quick")
    assert quick == Settings(repeats=1, sizes=(1,), grid=None, warm_up=False)
    assert asked("--quick", "--repeats=3", "--grid=1x2") == dataclasses.replace(quick, repeats=3, grid=(1, 2))


def test_each_type_is_read() -> None:
    some = "--sizes=8,1,8 --which=c,a --grid=3x5 --where=there --simulate --how=fast --limit=1.5 --delay=2"
    assert asked(*some.split()) == Settings(5, (8, 1), ("c", "a"), (3, 5), "there", True, "fast", 1.5, 2.0)
    assert asked("--how", "--repeats=2") == Settings(2, how="plain")
    assert asked("--sizes=none", "--grid=none") == Settings(sizes=(), grid=None)


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("--repeats=0", "--repeats=0: a whole number, at least 1"),
        ("--repeats=1.5", "--repeats=1.5: a whole number, at least 1"),
        ("--repeats=13", "--repeats=13: bad luck"),
        ("--sizes=1,,2", "--sizes=: a whole number, at least 1"),
        ("--which=a,d", "--which: 'd' is none of a, b, c"),
        ("--which=none", "--which: 'none' is none of a, b, c"),
        ("--grid=3", "--grid=3: two whole numbers"),
        ("--grid=0x3", "--grid=0: a whole number, at least 1"),
        ("--where=nowhere", "--where: 'nowhere' is none of here, there"),
        ("--limit=0.5", "--limit=0.5: a number of seconds from 1 to 3600"),
        ("--limit=inf", "--limit=inf: a number of seconds from 1 to 3600"),
        ("--limit=nan", "--limit=nan: a number of seconds from 1 to 3600"),
        ("--delay=-1", "--delay=-1: a number of milliseconds, at least 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(argument, error) -> None:
    with pytest.raises(UsageError, match=f"^{error}"):
        asked(argument)


def test_help_says_defaults_and_names() -> None:
    text = " ".join(parser().format_help().split())
    for words in ("--repeats N runs (default 5)", "bytes (default 1,8)", "some of a, b and c (default a,b)", "--quick"):
        assert words in text
    assert "warm" not in text  # it is no flag


WRONG = {
    "all": ["--only=store,sore"],
    "launch": ["--cases=two", "--nodes=1", "--full-node=1", "--collectives=-1", "--references=torch"],
    "faults": [
        "--faults=fire",
        "--nodes=2",
        "--ttl=0",
        "--collective-timeout=0",
        "--rdzv-conf=parallel=ttl=3 --backends=static",
    ],
    "rendezvous": [
        "--nodes=16,no",
        "--nodes=3",
        "--nodes=300",  # processes, without --simulate
        "--nodes=100000000 --simulate --hosts=loopback",
        "--nodes=100000000 --simulate=native --hosts=loopback",
        "--nodes=100000000 --simulate=native --server=process",
        "--simulate=fast",
        "--processes=2",
        "--hosts=there",
        "--server=process --backends=static",
        "--references=torch",
        "--etcd-data=/there",
        "--closed=tls --simulate=native",
        "--closed=tls --hosts=namespaces",
        "--ttl=1.5",
        "--delay=1001",
    ],
    "store": [
        "--targets=theirs",
        "--targets=echo:2",
        "--workloads=nap",
        "--closed=tls --targets=echo",
        "--closed=tls --workloads=storm",
        "--storm=100000000",
    ],
    "tiered": [
        "--routes=fast",
        "--nodes=1000",  # at most 4096 ranks
        "--many=2000x10",
        "--fanout=8 --many=8x2",
        "--tree=20000x1",
        "--fanout=8 --tree=8x2",
        "--closed=tls --routes=direct",
    ],
    "transport": ["--clients=1,none"],
}  # fmt: skip


@pytest.mark.parametrize(("bench", "arguments"), [(bench, each) for bench, all_ in WRONG.items() for each in all_])
def test_wrong_argument_of_a_benchmark_is_named(bench, arguments, capfd) -> None:
    assert tools.main(["bench", bench, *arguments.split()]) == UsageError.exit_code
    said = capfd.readouterr()
    flag, value = arguments.split()[0].split("=", 1)
    assert flag in said.err or value in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_backend_that_is_not_there_is_an_error(monkeypatch, tmp_path, capsys) -> None:
    assert tools.main(["bench", "rendezvous", "--quick", "--backends=parallel,zoo"]) == UnknownBackend.exit_code
    assert "'zoo'" in capsys.readouterr().err
    command = ["bench", "rendezvous", "--quick", "--backends=parallel,etcd"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.main(command) == MissingDependency.exit_code
    assert "apt-get install etcd-server" in capsys.readouterr().err
    (tmp_path / "etcd").write_text("#!/bin/sh\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setitem(sys.modules, "etcd3", None)
    assert tools.main(command) == MissingDependency.exit_code
    assert "pip install 'rdzv-plugins[etcd]'" in capsys.readouterr().err


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
