"""Directories into which plug-ins are really installed, beside this project and torch."""

import shutil
import subprocess
import sys

import pytest
from kits import ROOT
from kits.distribution import leave

from rdzv_plugins.testing.processes import clean_environment

TIMEOUT_S = 200


class Site:
    """A directory on the path of Python, and another one where commands are run."""

    def __init__(self, root):
        self.root, self.path = root, root / "site"
        self.path.mkdir()
        (root / "never.py").write_text('raise SystemExit("it was run")\n')

    def install(self, source):
        """By pip, of a copy: the checkout stays clean."""
        copy = shutil.copytree(source, self.root / "src")
        options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", f"--target={self.path}"]
        self.run("-m", "pip", "--disable-pip-version-check", "install", *options, copy).check_returncode()

    def add(self, module, source, plugin, version="1.0", more=""):
        """A distribution of one module, as pip would leave it. ``more`` comes into its metadata."""
        points = f"[rdzv_plugins]\n{plugin} = {module}\n"
        leave(self.path, module.replace("_", "-"), points, version, more=more, **{module: source})

    def run(self, *arguments, **variables):
        """``python ARGUMENTS`` to its end."""
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.root,
            env=clean_environment() | {"PYTHONPATH": str(self.path)} | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def rdzv_run(self, *arguments, **variables):
        """``rdzv-run ARGUMENTS`` to its end."""
        return self.run("-m", "rdzv_launcher.run.cli", *arguments, **variables)


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """Two well-made third-party plug-ins: a backend, and hooks."""
    site = Site(tmp_path_factory.mktemp("good"))
    site.install(ROOT / "examples/rdzv-file")
    site.add("rdzv_toy_hooks", (ROOT / "tests/plugins/toy_hooks.py").read_text(), "toy-hooks", "0.7")
    return site
