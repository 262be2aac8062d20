"""What each benchmark may be asked for and refuses; what is gone, and what to do instead; and who is compared."""

from __future__ import annotations

import argparse
import importlib
import sys

import pytest

from rdzv_launcher.bench import arguments
from rdzv_launcher.bench.backends import shipped
from rdzv_launcher.tools import cli as tools
from rdzv_plugins.errors import MissingDependency, UnknownBackend, UsageError
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.testing.find import find_harness

ALL = {"launch", "rendezvous", "faults", "store"}


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments.configure(parser.add_subparsers())
    return parser.parse_args(["bench", *words])


def test_flags_are_read_and_what_is_not_given_is_the_default_or_that_of_quick() -> None:
    store = asked("store")
    assert (store.connections, store.job, store.quick) == ((1000,), ((4, 8), (16, 8)), False)
    assert not {"storm", "closed", "worker_rounds"} & vars(store).keys()  # in the manifest is what may be set
    quick = asked("store", "--connections=7", "--quick", "--repeats=3")
    assert (quick.connections, quick.workers, quick.repeats, quick.quick) == ((7,), (2,), 3, True)
    some = asked("rendezvous", "--nodes=8,4,8", "--simulate=3", "--references=none", "--backends=a,b")
    assert (some.nodes, some.simulate, some.references, some.backends) == ((8, 4), 3, (), ("a", "b"))
    assert (asked("rendezvous").simulate, asked("rendezvous", "--simulate").simulate >= 1) == (0, True)


WRONG = {
    "all": ["--only=store,sore"],
    "launch": ["--cases=two", "--nodes=1", "--collectives=-1", "--references=torch"],
    "faults": ["--faults=fire", "--nodes=2", "--ttl=0", "--limit=inf", "--limit=nan",
               "--rdzv-conf=parallel=ttl=3 --backends=static"],
    "rendezvous": ["--nodes=16,no", "--nodes=3", "--nodes=300", "--nodes=100000000 --simulate", "--simulate=native",
                   "--ttl=1.5", "--backends=a,,b"],
    "store": ["--targets=theirs", "--targets=echo:2", "--workloads=nap", "--connections=100000000", "--job=4",
              "--job=0x3", "--job=4096x4096", "--repeats=1.5"],
}  # fmt: skip
for _bench, _flags in arguments._GONE_FLAGS.items():
    WRONG[_bench] += [f"{flag}=2" for flag in _flags]


@pytest.mark.parametrize(("bench", "words"), [(bench, each) for bench, all_ in WRONG.items() for each in all_])
def test_wrong_argument_of_a_benchmark_is_named(bench, words, capfd) -> None:
    try:
        code = tools.main(["bench", bench, *words.split()])
    except SystemExit as error:
        code = error.code
    assert code == UsageError.exit_code
    said = capfd.readouterr()
    flag, value = words.split()[0].split("=", 1)
    assert flag in said.err or value in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


@pytest.mark.parametrize(("command", "workload"), [("tiered", "init"), ("transport", "worker")])
def test_commands_that_are_gone_are_refused_and_the_workload_named(command, workload, capsys) -> None:
    assert tools.main(["bench", command, "--quick", "--nodes=4"]) == UsageError.exit_code
    assert f"--workloads={workload}" in capsys.readouterr().err


def test_front_alone_says_what_there_is(capsys) -> None:
    assert tools.main(["bench"]) == UsageError.exit_code
    told = capsys.readouterr()
    assert told.out == ""
    for name in (*ALL, "all", "report"):
        assert f"\n    {name}" in told.err
        with pytest.raises(SystemExit) as raised:
            tools.main(["bench", name, "--help"])
        assert raised.value.code == 0
        said = capsys.readouterr().out
        assert said.startswith(f"usage: rdzv bench {name} ")
        assert ("--quick" in said) == (name != "report")
    assert "tiered" not in told.err


def test_backend_that_is_not_there_is_an_error(monkeypatch, tmp_path, capsys) -> None:
    assert tools.main(["bench", "rendezvous", "--quick", "--backends=parallel,zoo"]) == UnknownBackend.exit_code
    assert "'zoo'" in capsys.readouterr().err
    command = ["bench", "rendezvous", "--quick", "--backends=parallel,etcd"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.main(command) == MissingDependency.exit_code
    assert "apt-get install etcd-server" in capsys.readouterr().err


def test_names_are_those_of_the_installed_backends_that_come_with_the_project() -> None:
    catalog = PluginHost.load().catalog
    assert {catalog.find(name).record.distribution for name in shipped()} == {"rdzv-plugins"}
    assert [*shipped()] == ["static", "c10d", "parallel", "tiered", "etcd"]


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_benchmarks_need_neither_pytest_nor_what_draws(monkeypatch) -> None:
    for name in [each for each in sys.modules if each.startswith("rdzv_launcher.bench.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pytest", "matplotlib", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in (*ALL, "nodes", "page"):
        importlib.import_module(f"rdzv_launcher.bench.{name}")
