"""From a name to a harness: that of its distribution, or one made of an endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kits.conformance.toy_kit import install

from rdzv_plugins.errors import BrokenPlugin, RdzvError, UnknownBackend, UsageError
from rdzv_plugins.testing import free_port
from rdzv_plugins.testing.builtin import C10dHarness, EtcdHarness, ParallelHarness, StaticHarness, TieredHarness
from rdzv_plugins.testing.find import find_harness

Installed = Callable[..., str]
UNREACHABLE = """
from state_toys import backend
from rdzv_plugins import hookimpl
from rdzv_plugins.errors import EndpointUnreachable

class State:
    name = "toy"
    def get_state(self):
        raise EndpointUnreachable("nobody answers")
    def set_state(self, state, token=None): ...

@hookimpl
def rdzv_register_backends():
    return backend("find-unreachable", create=lambda request: State())
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Installs a right state backend of that name, with that entry point of a harness."""

    def it(name: str, harness: str | None, code: str = "") -> None:
        site = install(tmp_path, name)
        (entries,) = site.glob("*.dist-info/entry_points.txt")
        plugin = entries.read_text().partition("[rdzv_plugins.harnesses]")[0]
        entries.write_text(plugin + (f"[rdzv_plugins.harnesses]\n{name} = {harness}\n" if harness else ""))
        if code:
            (site / f"{name.replace('-', '_')}_as_plugin.py").write_text(code)
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
    endpoint = f"127.0.0.1:{free_port()}" if dialled else str(tmp_path)
    if not dialled:
        installed(name, None)
    conf = {"linger": "1"} if dialled else {}
    harness = find_harness(name, endpoint, conf)
    assert (harness.backend, harness.kind, harness.service, harness.dialled) == (name, kind, None, dialled)
    assert harness.endpoint(tmp_path) == endpoint
    assert harness.conf == conf
    assert (harness.nowhere(tmp_path) not in (None, endpoint)) == dialled
    assert harness.wrong_endpoints == ()


def test_endpoint_at_which_it_cannot_be_created(installed: Installed, tmp_path: Path) -> None:
    installed("find-unreachable", None, UNREACHABLE)
    nobody = f"127.0.0.1:{free_port()}"
    for name, endpoint, why, code in (
        ("parallel", "a b", "UsageError", None),
        ("find-unreachable", str(tmp_path), "nobody answers", 68),
        ("parallel", nobody, "could not be reached", 68),
    ):
        conf = {"is_host": "false"} if endpoint == nobody else {}
        with pytest.raises(RdzvError, match=f"could not be created at {endpoint}\n.*{why}") as caught:
            find_harness(name, endpoint, conf)
        assert caught.value.remedy
        assert code in (None, caught.value.exit_code)


def test_backend_that_is_not_there_or_has_no_harness(installed: Installed) -> None:
    with pytest.raises(UnknownBackend, match="'parallel'"):
        find_harness("paralel")
    installed("find-no-harness", None)
    with pytest.raises(UsageError) as caught:
        find_harness("find-no-harness")
    assert "--rdzv-endpoint" in caught.value.remedy


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
