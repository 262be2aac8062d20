"""The wheels of this project and of the examples, in an environment that knows nothing of this checkout."""

import signal
import zipfile
from pathlib import Path

import pytest
from kits.examples.distributions import EXAMPLES, ROOT, CleanEnvironment, pip_wheel
from kits.launcher.harness import Cluster, free_port

from rdzv_plugins.testing.processes import MARK

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1600)]
BUILT_IN = {"c10d", "etcd", "parallel", "static", "tiered"}


def test_wheel_that_pip_builds_has_every_file_of_the_sources_and_the_native_library(tmp_path: Path) -> None:
    """As for a release: all is compiled, which takes minutes."""
    pip_wheel(tmp_path, ROOT, f"--config-settings=build-dir={tmp_path}/build", RDZV_REQUIRE_NATIVE="1")
    (wheel,) = tmp_path.glob("rdzv_plugins-*.whl")
    assert "linux" in wheel.name
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        str(file.relative_to(package.parent))
        for package in (ROOT / "src/rdzv_plugins", ROOT / "src/launcher/rdzv_launcher")
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so"
    }
    libraries = {name for name in inside if name.endswith(".so")}
    assert {Path(name).name.partition(".")[0] for name in libraries} == {"_native", "_load"}
    assert inside - libraries == sources


def test_environment_knows_nothing_of_this_project_but_by_the_wheels(installed: CleanEnvironment) -> None:
    ours = "rdzv_plugins", "rdzv_launcher", "rdzv_file", "rdzv_http", "rdzv_redis"
    loaded = f"(m.__file__ for m in sys.modules.values() if m.__name__.partition('.')[0] in {ours})"
    code = f"import sys, {', '.join(ours)}; print(*{loaded}, *sys.path)"
    found = installed.run("python", "-c", code)
    assert found.returncode == 0, found.stderr
    assert str(installed.site) in found.stdout
    assert str(ROOT / "src") not in found.stdout
    assert str(ROOT / "examples") not in found.stdout
    listed = installed.backends()
    assert {each["name"]: (each["distribution"], each["version"]) for each in listed["backends"]} == {
        **dict.fromkeys(BUILT_IN, ("rdzv-plugins", "0.1.0")),
        **{name.removeprefix("rdzv-"): (name, "0.1.0") for name in EXAMPLES},
    }
    assert (listed["failed"], listed["conflicts"]) == ([], [])


def test_rdzv_serve_needs_no_torch(wheels: Path, jobs: Cluster, tmp_path: Path) -> None:
    """As docs/guides/operations.md installs it."""
    environment = CleanEnvironment(tmp_path / "env", only=["msgspec", "pluggy", "pip"])
    environment.pip("install", "--no-index", f"--find-links={wheels}", "--no-deps", "rdzv-plugins")
    assert "torch is not installed" in environment.run("rdzv", "--version").stdout
    jobs.env = environment.variables() | {MARK: jobs.mark}
    port = free_port()
    server = jobs.start([environment.root / "bin/rdzv", "serve", f"--rdzv-endpoint=*:{port}"])
    server.wait_for("serving a store at")
    asked = environment.run("rdzv", "status", f"--rdzv-endpoint=127.0.0.1:{port}")
    assert asked.returncode == 0, asked.stderr
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0, server.text


def test_uninstalling_one_leaves_the_others_untouched(all_wheels: Path, tmp_path: Path) -> None:
    environment = CleanEnvironment(tmp_path / "env")
    environment.install(all_wheels, *EXAMPLES)
    before = environment.files()
    environment.pip("uninstall", "--yes", "rdzv-redis")
    gone = before - environment.files()
    assert gone
    site = environment.site.relative_to(environment.root)
    assert {Path(file).relative_to(site).parts[0] for file in gone} == {"rdzv_redis", "rdzv_redis-0.1.0.dist-info"}
    listed = environment.backends()
    assert {each["name"] for each in listed["backends"]} == BUILT_IN | {"file", "http"}
    assert (listed["failed"], listed["conflicts"]) == ([], [])

    refused = environment.run("rdzv-run", "--rdzv-backend=redis", "--rdzv-endpoint=127.0.0.1:6379", "never.py")
    assert refused.returncode == 2
    assert "'redis'" in refused.stderr
