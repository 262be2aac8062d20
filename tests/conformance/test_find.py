"""From a name to a harness: that of its distribution, or one made of an endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.conformance.toy_kit import install

from rdzv_plugins.errors import BrokenPlugin, RdzvError, UnknownBackend, UsageError
from rdzv_plugins.testing import free_port
from rdzv_plugins.testing.builtin import C10dHarness, EtcdHarness, ParallelHarness, StaticHarness, TieredHarness
from rdzv_plugins.testing.find import find_harness

UNREACHABLE = """
from right_state import backend
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


@pytest.mark.parametrize("kind", [StaticHarness, C10dHarness, ParallelHarness, TieredHarness, EtcdHarness])
def test_built_ins_register_as_strangers_do(kind: type) -> None:
    assert type(find_harness(kind.backend)) is kind  # type: ignore[attr-defined]


def test_alias_and_conf_on_top_of_the_harness() -> None:
    harness = find_harness("Parallel_Epoll", conf={"ttl": "9", "linger": "0"})
    assert harness.backend == "parallel"
    assert harness.conf == {**ParallelHarness.conf, "ttl": "9", "linger": "0"}
    assert ParallelHarness.conf["ttl"] == "4"


def test_unknown_backend() -> None:
    with pytest.raises(UnknownBackend, match="did you mean 'parallel'"):
        find_harness("paralel")


@pytest.mark.parametrize(("name", "kind"), [("static", "handler"), ("parallel", "coordination")])
def test_endpoint_makes_a_harness_without_a_service(name: str, kind: str, tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    harness = find_harness(name, endpoint, {"linger": "1"})
    assert (harness.backend, harness.kind, harness.service) == (name, kind, None)
    assert harness.endpoint(tmp_path) == endpoint
    assert harness.conf == {"linger": "1"}
    assert harness.dialled
    assert harness.nowhere(tmp_path) not in (None, endpoint)
    assert harness.wrong_endpoints == ()


def test_endpoint_that_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = install(tmp_path, "state_right")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    harness = find_harness("state-right", str(tmp_path))
    assert (harness.kind, harness.dialled) == ("state", False)
    assert harness.nowhere(tmp_path) is None


def test_endpoint_at_which_it_cannot_be_created() -> None:
    with pytest.raises(RdzvError, match=r"could not be created at a b\n.*UsageError") as caught:
        find_harness("parallel", "a b")
    assert caught.value.remedy


def test_backend_without_a_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, "find_no_harness", None)
    with pytest.raises(UsageError, match="names no harness of its own") as caught:
        find_harness("find-no-harness")
    assert "--rdzv-endpoint" in caught.value.remedy


def test_nobody_at_the_endpoint_of_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = _install(tmp_path, monkeypatch, "find_unreachable", None)
    toy = site / "find_unreachable.py"
    toy.write_text(UNREACHABLE)
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(RdzvError, match=f"could not be created at {tmp_path}\n.*nobody answers") as caught:
        find_harness("find-unreachable", str(tmp_path))
    assert caught.value.exit_code == 68


def test_nobody_at_the_endpoint_of_a_coordination_service() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(RdzvError, match=f"could not be created at {nobody}\n.*could not be reached") as caught:
        find_harness("parallel", nobody, {"is_host": "false"})
    assert caught.value.exit_code == 68


def test_harness_of_no_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = _install(tmp_path, monkeypatch, "find_no_kind", "find_no_kind_harness:It")
    text = "from rdzv_plugins.testing import Harness\nclass It(Harness):\n    kind = 'lease'\n"
    (site / "find_no_kind_harness.py").write_text(text)
    with pytest.raises(BrokenPlugin, match="'find-no-kind' of rdzv-find-no-kind has kind = 'lease'") as caught:
        find_harness("find-no-kind")
    assert "state, coordination, handler" in caught.value.remedy


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("no_such_module_of_a_toy:Harness", "ModuleNotFoundError"),
        ("collections:OrderedDict", "is a OrderedDict"),
        ("toy_harness:NoSuchHarness", "AttributeError"),
    ],
)
def test_broken_harness_is_named(where: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, "find_broken_harness", where)
    with pytest.raises(BrokenPlugin, match=f"'find-broken-harness' of rdzv-find-broken-harness .*{message}"):
        find_harness("find-broken-harness")


def _install(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, harness: str | None) -> Path:
    """A right state backend of that name, with that entry point of a harness; where it is installed."""
    site = install(directory, "state_right")
    module = site / f"{name}.py"
    backend = name.replace("_", "-")
    module.write_text((site / "state_right.py").read_text().replace("state-right", backend))
    (info,) = site.glob("*.dist-info")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rdzv-{backend}\nVersion: 1.0\n")
    entries = f"[rdzv_plugins]\n{backend} = {name}\n"
    if harness is not None:
        entries += f"[rdzv_plugins.harnesses]\n{backend} = {harness}\n"
    (info / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(str(site))
    return site
