"""``rdzv new-backend``: the package that it writes, really installed. What fails in it says what is not written yet."""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kits.examples.tutorial_kit import Shell, environment

from rdzv_launcher.tools.cli import main
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable

FILES = {
    ".gitignore",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "src/rdzv_bar_2/__init__.py",
    "src/rdzv_bar_2/conformance.py",
    "tests/test_conformance.py",
    "train.py",
}
QUICK = "--conformance-themes=plugin,backend"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """In an environment in which the packages of the tests are installed, and in a directory where they were made."""
    made = tmp_path_factory.mktemp("new-backend")
    env = environment(made / "env")
    with Shell(env, made) as shell:
        yield shell


def results(shell: Shell, arguments: str) -> dict[str, dict[str, str]]:
    """A package that is written and installed as it says: of its own tests, by name, outcome and message."""
    code, said = shell.run(f"rdzv new-backend {arguments}")
    assert code == 0, said
    (directory,) = (line.split()[1] for line in said.splitlines() if line.startswith("    cd "))
    pip = next(line for line in said.splitlines() if " pip " in line)
    code, shown = shell.run(f"(cd {directory} && {pip})")
    assert code == 0, shown
    _, shown = shell.run(f"(cd {directory} && python -m pytest {QUICK} --conformance-json=report.json)")
    _, text = shell.run(f"cat {directory}/report.json")
    backends = json.loads(text)["backends"] if text.startswith("{") else []
    assert len(backends) == 1, shown
    themes = backends[0]["themes"]
    return {f"{theme}: {name}": test for theme, tests in themes.items() for name, test in tests.items()}


@pytest.mark.parametrize(("kind", "more"), [("state", set()), ("coordination", {"src/rdzv_bar_2/client.py"})])
def test_it_says_what_it_has_written_and_what_comes_next(
    kind: str, more: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "bar-2", "--kind", kind]) == 0
    said = capsys.readouterr().out
    files = {str(path.relative_to("rdzv-bar-2")) for path in Path("rdzv-bar-2").rglob("*") if path.is_file()}
    assert files == FILES | more
    assert [line.strip() for line in said.split("\n\n")[1].splitlines()] == sorted(files)


@pytest.mark.thorough
def test_a_coordination_backend_is_complete_but_for_its_service(shell: Shell) -> None:
    found = results(shell, "my-store --kind coordination --directory ./another")
    failed = {name: test["message"] for name, test in found.items() if test["outcome"] == "failed"}
    assert set(failed) == {"plugin: test_nobody_at_the_endpoint", "backend: test_each_call_is_answered_soon"}
    assert {test["outcome"] for name, test in found.items() if name.startswith("plugin")} == {"passed", "failed"}
    assert sum(test["outcome"] == "untried" for test in found.values()) > 20
    for name, message in failed.items():
        assert "MyStoreClient.connect is not written yet" in message, (name, message)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The directory that is a backend's endpoint."""
    place = tmp_path / "shared"
    place.mkdir()
    return place


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package that is written, without an installation."""
    package = tmp_path / "package"
    assert main(["new-backend", "bar-2", "--kind=state", f"--directory={package}"]) == 0
    monkeypatch.syspath_prepend(str(package / "src"))
    monkeypatch.delitem(sys.modules, "rdzv_bar_2", raising=False)
    return importlib.import_module("rdzv_bar_2")


@pytest.fixture
def node(module: ModuleType, shared: Path) -> Callable[..., Any]:
    """Makes backends of a run, each as another node would."""
    return lambda run_id="job": module.Bar2Backend(str(shared), run_id, module.Bar2Options())


def test_nobody_else_may_read_or_write_a_state(node: Callable[..., Any], shared: Path) -> None:
    """Whatever the umask is, and whatever the mode was before: it is a pickle, and every node unpickles it."""

    def modes() -> dict[str, int]:
        return {file.name: stat.S_IMODE(file.stat().st_mode) for file in shared.iterdir()}

    before = os.umask(0)
    try:
        node().set_state(b"state")
        assert modes() == {"job.bar-2": 0o600, "job.bar-2.lock": 0o600}
        for file in shared.iterdir():
            file.chmod(0o666)
        assert node().get_state() == (b"state", 1)
    finally:
        os.umask(before)
    assert modes() == {"job.bar-2": 0o600, "job.bar-2.lock": 0o600}


def test_a_file_of_another_user_is_refused_and_a_link_is_not_followed(
    node: Callable[..., Any], module: ModuleType, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"1\nof somebody else")
    for ending in ("", ".lock", ".new"):
        link = shared / f"job.bar-2{ending}"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(EndpointUnreachable):
            node().set_state(b"state")
        link.unlink()
    assert target.read_bytes() == b"1\nof somebody else"

    node().set_state(b"first")
    file, fstat = shared / "job.bar-2.lock", os.fstat

    def of_another(number: int) -> object:
        told = fstat(number)
        return SimpleNamespace(st_uid=told.st_uid + 1) if os.path.samestat(told, file.stat()) else told

    monkeypatch.setattr(module, "os", SimpleNamespace(**{**vars(os), "fstat": of_another}))
    with pytest.raises(AccessRefused, match=rf"job\.bar-2.lock .*{os.geteuid() + 1}"):
        node().set_state(b"second", 1)


def test_a_run_id_is_no_path(node: Callable[..., Any], tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    for run_id in ("..", "a/b", "../../a", "ä b"):
        node(run_id).set_state(b"state")
    assert set(tmp_path.iterdir()) == before


def test_what_cannot_be_written_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that cannot be, and a directory that is there or cannot be made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rdzv-bar").mkdir()
    names = ("Foo", "3d", "a--b", "a/b", "rdzv-foo", "static", "parallel-epoll", "etcd-v2", "plugins")
    for arguments, named in [
        *(([name], name) for name in names),
        (["bar"], "--directory"),
        (["bar", "--directory=no/such/place"], "no/such/place"),
    ]:
        assert main(["new-backend", *arguments]) == 2
        assert named in capsys.readouterr().err
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["rdzv-bar"]
