"""``rdzv new-backend``: the package that it writes, really installed. What fails in it says what is not written yet."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from kits.examples.tutorial_kit import ROOT, Shell, environment
from kits.launcher.harness import BIN
from kits.unit.memory_coordination import MemoryBackend, MemoryService

from rdzv_launcher.tools.cli import main
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable

SKELETON = ROOT / "src/launcher/rdzv_launcher/tools/skeleton"
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
    with Shell(env.root, made) as shell:
        yield shell
    env.close()


@pytest.fixture(scope="module")
def foo(shell: Shell) -> str:
    """A package of kind state; what was printed when it was written."""
    return installed(shell, "foo")


@pytest.fixture(scope="module")
def my_store(shell: Shell) -> str:
    """One of kind coordination."""
    return installed(shell, "my-store --kind coordination --directory ./another")


def installed(shell: Shell, arguments: str) -> str:
    code, said = shell.run(f"rdzv new-backend {arguments}")
    assert code == 0, said
    (directory,) = (line.split()[1] for line in said.splitlines() if line.startswith("    cd "))
    pip = next(line for line in said.splitlines() if " pip " in line)
    code, shown = shell.run(f"(cd {directory} && {pip})")
    assert code == 0, shown
    return said


def listed(shell: Shell) -> dict[str, dict[str, object]]:
    code, shown = shell.run("rdzv backends --json")
    assert code == 0, shown
    data = json.loads(shown)
    assert (data["failed"], data["conflicts"]) == ([], [])
    return {backend["name"]: backend for backend in data["backends"]}


def results(shell: Shell, directory: str, *more: str) -> dict[str, dict[str, str]]:
    """Of the package's own tests, by name: outcome and message."""
    _, shown = shell.run(
        f"(cd {directory} && python -m pytest {QUICK} --conformance-json=report.json {' '.join(more)})"
    )
    _, text = shell.run(f"cat {directory}/report.json")
    backends = json.loads(text)["backends"] if text.startswith("{") else []
    assert len(backends) == 1, shown
    (backend,) = backends
    return {f"{theme}: {name}": test for theme, tests in backend["themes"].items() for name, test in tests.items()}


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
    assert "    cd rdzv-bar-2\n    python -m pip install -e '.[test]'\n" in said
    assert "    rdzv conformance bar-2" in said


def test_a_state_backend_is_listed_as_soon_as_it_is_installed(shell: Shell, foo: str) -> None:
    backend = listed(shell)["foo"]
    assert (backend["distribution"], backend["version"], backend["capabilities"]) == ("rdzv-foo", "0.1.0", ["elastic"])


def test_a_state_backend_passes_its_own_tests(shell: Shell, foo: str) -> None:
    found = results(shell, "rdzv-foo")
    assert {test["outcome"] for test in found.values()} == {"passed", "gap"}, found
    assert {name.partition(":")[0] for name in found} == {"plugin", "backend"}
    assert found["backend: test_a_token_is_good_for_one_write"]["outcome"] == "passed"


def test_a_state_backend_launches_two_nodes(shell: Shell, foo: str) -> None:
    shell.run("mkdir shared")
    command = "rdzv-run --rdzv-backend=foo --rdzv-endpoint=$PWD/shared --nnodes=2 --no-python sh -c"
    worker = "'echo rank $RANK of $WORLD_SIZE > shared/$RANK'"
    code, shown = shell.run(f"{command} {worker} & {command} {worker} && wait $!")
    assert code == 0, shown
    assert shell.run("cat shared/0 shared/1")[1] == "rank 0 of 2\nrank 1 of 2\n"


def test_the_commands_that_it_prints_launch_a_worker(shell: Shell, foo: str) -> None:
    commands = [line.strip() for line in foo.splitlines() if line.startswith(("    mkdir ", "    rdzv-run "))]
    assert len(commands) == 2
    code, shown = shell.run(f"(cd rdzv-foo && {' && '.join(commands)})")
    assert code == 0, shown
    assert "rank 0 of 1: the sum is 1" in shown


def test_a_coordination_backend_is_complete_but_for_its_service(shell: Shell, my_store: str) -> None:
    backend = listed(shell)["my-store"]
    assert backend["capabilities"] == ["elastic", "node_rank", "node_replacement"]
    found = results(shell, "another")
    plugin = {name: test["outcome"] for name, test in found.items() if name.startswith("plugin")}
    nobody = plugin.pop("plugin: test_nobody_at_the_endpoint")  # only connect could know
    assert (set(plugin.values()), nobody) == ({"passed"}, "failed")
    failed = {name: test["message"] for name, test in found.items() if test["outcome"] == "failed"}
    assert set(failed) == {"plugin: test_nobody_at_the_endpoint", "backend: test_each_call_is_answered_soon"}
    assert sum(test["outcome"] == "untried" for test in found.values()) > 20
    for name, message in failed.items():
        assert "MyStoreClient.connect is not written yet: connect, and ask what it is" in message, (name, message)


def test_each_failure_names_the_method_that_comes_next(shell: Shell, my_store: str) -> None:
    """Once a session can be opened, tests fail at what is asked of it."""
    client = "another/src/rdzv_my_store/client.py"
    there = r"Client\.\(connect\|open\|keep_alive\|end\)"
    shell.run(f"sed -i.bak '/_not_written(.*{there}/s/_not_written.*/return 60.0/' {client}")
    try:
        found = results(shell, "another", "-k", "'created_once or listed_by_prefix or are_kept_apart'")
    finally:
        shell.run(f"mv {client}.bak {client}")
    failed = [test["message"] for test in found.values() if test["outcome"] == "failed"]
    for method in ("create", "put", "list"):
        assert any(f"MyStoreClient.{method} is not written yet: " in message for message in failed), failed


@pytest.mark.parametrize("directory", ["rdzv-foo", "another"])
def test_what_it_writes_is_as_this_project_writes(shell: Shell, foo: str, my_store: str, directory: str) -> None:
    for check in ("check --no-cache --ignore=D", "format --no-cache --check"):
        code, shown = shell.run(f"{BIN / 'ruff'} {check} --config {ROOT / 'pyproject.toml'} {directory}")
        assert code == 0, shown
    code, shown = shell.run(
        f"grep -rn '@[A-Z]' {directory} --include='*.*' --exclude-dir=.git --exclude-dir=__pycache__"
    )
    assert code == 1, f"a word was not filled in:\n{shown}"


def imported(directory: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package that is written, without an installation."""
    assert main(["new-backend", "bar-2", "--kind", kind, "--directory", str(directory)]) == 0
    path = directory / "src/rdzv_bar_2/__init__.py"
    spec = importlib.util.spec_from_file_location("rdzv_bar_2", path, submodule_search_locations=[str(path.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rdzv_bar_2", module)
    spec.loader.exec_module(module)
    return module


class OnFiles:
    """Makes backends of kind state for the run ``job``, each as another node would."""

    def __init__(self, module: ModuleType, directory: Path) -> None:
        directory.mkdir()
        self.module, self.directory = module, directory

    def __call__(self, run_id: str = "job", **options: object):
        return self.module.Bar2Backend(str(self.directory), run_id, self.module.Bar2Options(**options))

    @property
    def modes(self) -> dict[str, int]:
        return {file.name: stat.S_IMODE(file.stat().st_mode) for file in self.directory.iterdir()}


@pytest.fixture
def on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnFiles:
    return OnFiles(imported(tmp_path / "package", "state", monkeypatch), tmp_path / "shared")


def test_nobody_else_may_read_or_write_a_state(on_files: OnFiles) -> None:
    """Whatever the umask is, and whatever the mode was before: it is a pickle, and every node unpickles it."""
    before = os.umask(0)
    try:
        on_files().set_state(b"state")
        assert on_files.modes == {"job.bar-2": 0o600, "job.bar-2.lock": 0o600}
        for file in on_files.directory.iterdir():
            file.chmod(0o666)
        assert on_files().get_state() == (b"state", 1)
    finally:
        os.umask(before)
    assert on_files.modes == {"job.bar-2": 0o600, "job.bar-2.lock": 0o600}


@pytest.mark.parametrize("ending", ["", ".lock", ".new"])
def test_a_file_of_another_user_is_refused(on_files: OnFiles, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_files().set_state(b"first")
    file = on_files.directory / f"job.bar-2{ending}"
    file.touch()
    fstat = os.fstat

    def of_another(number: int) -> object:
        told = fstat(number)
        return SimpleNamespace(st_uid=told.st_uid + 1) if os.path.samestat(told, file.stat()) else told

    monkeypatch.setattr(on_files.module, "os", SimpleNamespace(**{**vars(os), "fstat": of_another}))
    with pytest.raises(AccessRefused, match=rf"job\.bar-2{ending} belongs to user {os.geteuid() + 1}$"):
        on_files().set_state(b"second", 1)


@pytest.mark.parametrize("ending", ["", ".lock", ".new"])
def test_a_link_is_not_followed(on_files: OnFiles, ending: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"1\nof somebody else")
    (on_files.directory / f"job.bar-2{ending}").symlink_to(target)
    with pytest.raises(EndpointUnreachable, match="symbolic links"):
        on_files().set_state(b"state")
    assert target.read_bytes() == b"1\nof somebody else"


def test_a_lock_that_stays_is_an_error_and_one_of_a_killed_process_is_free(on_files: OnFiles) -> None:
    on_files().set_state(b"state")
    path = on_files.directory / "job.bar-2.lock"
    hold = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True)"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{hold}; import signal; signal.pause()", str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(EndpointUnreachable, match=r"job\.bar-2 was locked for 0\.1 s"):
            on_files(lock_timeout=0.1).get_state()
    finally:
        holder.kill()
        holder.communicate()
    assert on_files().get_state() == (b"state", 1)


def test_what_a_killed_writer_has_left_is_not_a_part_of_the_next_state(on_files: OnFiles) -> None:
    (on_files.directory / "job.bar-2.new").write_bytes(b"1\n" + b"long" * 1000)
    on_files().set_state(b"short")
    assert on_files().get_state() == (b"short", 1)


def test_a_file_of_something_else_is_not_used(on_files: OnFiles) -> None:
    (on_files.directory / "job.bar-2").write_text("not a state")
    with pytest.raises(EndpointUnreachable, match=r"cannot use .*job\.bar-2"):
        on_files().set_state(b"state")


@pytest.mark.parametrize("run_id", ["..", "a/b", "../../a", "ä b"])
def test_a_run_id_is_no_path(on_files: OnFiles, tmp_path: Path, run_id: str) -> None:
    before = set(tmp_path.iterdir())
    on_files(run_id).set_state(b"state")
    assert len(on_files.modes) == 2
    assert set(tmp_path.iterdir()) == before


def test_keys_of_a_run_are_not_those_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the id of one begins like that of the other."""
    module = imported(tmp_path / "package", "coordination", monkeypatch)

    def prefix(run_id: str) -> str:
        request = SimpleNamespace(target=Endpoint("node", 1), run_id=run_id, options=module.Bar2Options())
        return str(module.create(request)._new_session()._client._prefix)

    prefixes = [prefix(run_id) for run_id in ("a", "a/b", "a/", "ab", "../a")]
    assert prefixes[0] == "/rdzv-plugins/a/"
    assert not any(one.startswith(other) for one in prefixes for other in prefixes if one is not other)


@pytest.mark.parametrize("kind", ["state", "coordination"])
def test_it_shows_all_that_a_backend_may_say_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made = imported(tmp_path / "package", kind, monkeypatch)
    backend = made.rdzv_register_backends()
    backend.check()
    assert backend.preflight is made.preflight
    directory = SimpleNamespace(endpoint=str(tmp_path))
    if kind == "state":
        assert str(tmp_path) in backend.preflight(directory, None)
        monkeypatch.setattr(made, "os", SimpleNamespace(**{**vars(os), "access": lambda *_: False}))
        with pytest.raises(AccessRefused):
            backend.preflight(directory, None)
    else:
        harness = (tmp_path / "package/src/rdzv_bar_2/conformance.py").read_text()
        assert '"outage_timeout": "10"' in harness
        assert "no leases" in (tmp_path / "package/src/rdzv_bar_2/client.py").read_text()


def test_what_a_coordination_backend_finds_before_the_start_is_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens a session at the service and closes it again; nothing is left."""
    made = imported(tmp_path / "package", "coordination", monkeypatch)
    service = MemoryService()
    monkeypatch.setattr(made, "create", lambda request: MemoryBackend(service))
    request = SimpleNamespace(target=Endpoint("node", 1), options=made.Bar2Options())
    with ExitStack() as held:
        assert "node:1" in made.preflight(request, held)
    assert (service.history, service.sessions) == ([], [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Foo", "'Foo' cannot be the name of a backend"),
        ("3d", "'3d' cannot be the name of a backend"),
        ("a--b", "'a--b' cannot be the name of a backend"),
        ("a/b", "'a/b' cannot be the name of a backend"),
        ("rdzv-foo", "'rdzv-foo' is the name of a package"),
        ("static", "rdzv-plugins 0.1.0 has a backend 'static' already"),
        ("parallel-epoll", "rdzv-plugins 0.1.0 has a backend 'parallel-epoll' already"),
        ("etcd-v2", "rdzv-run tells everybody that there is no 'etcd-v2'"),
        ("plugins", "a package rdzv-plugins 0.1.0 is installed already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", name]) == 2
    said = capsys.readouterr()
    error, remedy = said.err.splitlines()
    assert message in error
    assert remedy.removeprefix("rdzv: ")
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_an_installed_backend_has_is_refused(shell: Shell, foo: str) -> None:
    code, said = shell.run("rdzv new-backend foo --directory elsewhere; code=$?; ls -d elsewhere; (exit $code)")
    assert code == 2
    assert said.splitlines()[0] == "rdzv: error: rdzv-foo 0.1.0 has a backend 'foo' already"
    assert "cannot access 'elsewhere'" in said


def test_a_directory_that_is_there_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rdzv-bar").mkdir()
    assert main(["new-backend", "bar"]) == 2
    error, remedy = capsys.readouterr().err.splitlines()
    assert "rdzv-bar exists already" in error
    assert "--directory" in remedy
    assert list((tmp_path / "rdzv-bar").iterdir()) == []
    assert main(["new-backend", "bar", "--directory=no/such/place"]) == 2
    assert "cannot make no/such/place: No such file or directory" in capsys.readouterr().err


def test_nothing_is_left_of_a_package_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write = Path.write_text

    def full(path: Path, *arguments: str) -> int:
        if path.name == "conformance.py":
            raise OSError(28, "No space left on device", str(path))
        return write(path, *arguments)

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["new-backend", "bar"]) != 0
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/rdzv-*/pyproject.toml")), ids=lambda p: p.parent.name)
def test_examples_depend_on_the_same_versions(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "bar"]) == 0
    (ours,) = re.findall(r'"rdzv-plugins[^"[]*"', Path("rdzv-bar/pyproject.toml").read_text())
    assert re.fullmatch(r'"rdzv-plugins>=\d+\.\d+,<\d+"', ours)
    assert f"dependencies = [{ours}" in example.read_text()


def test_the_wheel_has_the_templates(tmp_path: Path) -> None:
    """Without the native part, which says nothing of them."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "CMakeLists.txt", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    (copy / "native").mkdir()
    shutil.copy(ROOT / "native/build_backend.py", copy / "native")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-index", "--no-deps"]
    flags = ["--no-build-isolation", "--config-settings=wheel.cmake=false", f"--wheel-dir={tmp_path}", str(copy)]
    subprocess.run([*pip, *flags], check=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    templates = {str(path.relative_to(SKELETON.parents[2])) for path in SKELETON.rglob("*") if path.is_file()}
    assert len(templates) > 8
    assert templates <= set(zipfile.ZipFile(wheel).namelist())
