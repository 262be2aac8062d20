"""From a name to a harness: that of its distribution, or one made of an endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kits.conformance.toy_kit import install

from rdzv_plugins.errors import BrokenPlugin, RdzvError
from rdzv_plugins.testing import free_port
from rdzv_plugins.testing.builtin import C10dHarness, EtcdHarness, ParallelHarness, StaticHarness, TieredHarness
from rdzv_plugins.testing.find import find_harness

Installed = Callable[[str, str | None], None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Installs a toy, or a right state backend of that name, with that entry point of a harness, or none."""

    def it(name: str, harness: str | None) -> None:
        site = install(tmp_path, name, harness)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setenv("PYTHONPATH", str(site))

    return it


@pytest.mark.parametrize("kind", [StaticHarness, C10dHarness, ParallelHarness, TieredHarness, EtcdHarness])
def test_built_ins_register_as_strangers_do(kind: type) -> None:
    assert type(find_harness(kind.backend)) is kind  # type: ignore[attr-defined]


def test_alias_and_conf_on_top_of_the_harness() -> None:
    harness = find_harness("Parallel_Epoll", conf={"ttl": "9", "linger": "0"})
    assert harness.backend == "parallel"
    assert harness.conf == {**ParallelHarness.conf, "ttl": "9", "linger": "0"}
    assert ParallelHarness.conf["ttl"] == "4"


@pytest.mark.parametrize(
    ("name", "kind"), [("static", "handler"), ("parallel", "coordination"), ("find-no-address", "state")]
)
def test_endpoint_makes_a_harness_without_a_service(name: str, kind: str, installed: Installed, tmp_path: Path) -> None:
    dialled = kind != "state"
    endpoint, conf = (f"127.0.0.1:{free_port()}", {"linger": "1"}) if dialled else (str(tmp_path), {})
    if not dialled:
        installed(name, None)
    harness = find_harness(name, endpoint, conf)
    assert (harness.backend, harness.kind, harness.service, harness.dialled) == (name, kind, None, dialled)
    assert (harness.endpoint(tmp_path), harness.conf, harness.wrong_endpoints) == (endpoint, conf, ())
    assert (harness.nowhere(tmp_path) not in (None, endpoint)) == dialled


@pytest.mark.parametrize(
    ("name", "where", "conf", "why", "code"),
    [
        ("parallel", "a b", {}, "UsageError", 70),
        ("parallel", "127.0.0.1:{}", {"is_host": "false"}, "could not be reached", 68),
        ("state-served", "127.0.0.1:{}", {}, "no state at", 68),
    ],
)
def test_endpoint_at_which_it_cannot_be_created(
    name: str, where: str, conf: dict[str, str], why: str, code: int, installed: Installed
) -> None:
    if name != "parallel":
        installed(name, None)
    endpoint = where.format(free_port())
    with pytest.raises(RdzvError, match=f"could not be created at {endpoint}\n.*{why}") as caught:
        find_harness(name, endpoint, conf)
    assert caught.value.remedy
    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    ("harness", "message"),
    [
        ("no_such_module_of_a_toy:Harness", "ModuleNotFoundError"),
        ("collections:OrderedDict", "is a OrderedDict"),
        ("toy_harness:NoSuchHarness", "AttributeError"),
        ("toy_harness:HarnessOfNoKind", "kind = 'lease'"),
    ],
)
def test_broken_harness_is_named(harness: str, message: str, installed: Installed) -> None:
    installed("find-broken-harness", harness)
    with pytest.raises(BrokenPlugin, match=f"'find-broken-harness' of rdzv-find-broken-harness .*{message}"):
        find_harness("find-broken-harness")
