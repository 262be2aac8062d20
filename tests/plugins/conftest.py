"""Temporary environments into which plug-ins are really installed, beside this project and torch."""

import os
import shutil
import subprocess
import sysconfig
import venv
from contextlib import closing
from pathlib import Path

import pytest

from rdzv_plugins.testing.launched import Agents, cold
from rdzv_plugins.testing.processes import MARK

HERE = Path(__file__).parent
TIMEOUT_S = 200


def registers(hook):
    """A module with that hook."""
    return f"from rdzv_plugins import Backend, hookimpl\n\n@hookimpl\n{hook}\n"


def backend(name, create="lambda request: None", more=""):
    """Such a module, whose backend has that ``create``."""
    made = f"Backend(name={name!r}, summary='a bad one', create={create}{more})"
    return registers(f"def rdzv_register_backends():\n    return {made}")


BAD = {
    # at import
    "import_error": "from rdzv_plugins import a_name_of_another_version",
    "raises_at_import": "raise RuntimeError('the licence server said no\\nand said it twice')",
    "exits_at_import": "import sys\nsys.exit('this backend wants to be alone')",
    "missing_dependency": "import rdzv_absent_client",
    # against the contract
    "wrong_signature": registers("def rdzv_register_backends(registry): ..."),
    "misspelt_hook": registers("def rdzv_register_backend(): ..."),
    "unmarked_hook": "def rdzv_register_backends(): ...",
    "no_hooks": "ANSWER = 42",
    "wrong_return": registers("def rdzv_register_backends():\n    return {'name': 'wrong_return'}"),
    "returns_none": registers("def rdzv_register_backends():\n    Backend(name='x', summary='s', create=print)"),
    # when they are used, or beside another
    "bad_create": backend("bad_create", "lambda request: 42"),
    "missing_dep_at_create": backend("missing_dep_at_create", "create", ", install='apt-get install absent-client'")
    + "def create(request):\n    import rdzv_absent_client\n",
    "twin_one": backend("twin"),
    "twin_two": backend("twin"),
    # torch's own handler as it is
    "slow_import": "import time\ntime.sleep(0.7)\n"
    + backend("slow_import", "create")
    + """
def create(request):
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    store, run = HashStore(), request.run_id
    nodes = request.min_nodes, request.max_nodes
    backend = C10dRendezvousBackend(store, run)
    return DynamicRendezvousHandler.from_backend(run, store, backend, *nodes, local_addr="127.0.0.1")
""",
}
"""Every kind of bad plug-in: the module of each."""


class Environment:
    """A virtual environment that also sees the packages of the one that runs the tests."""

    def __init__(self, root):
        self.root = root
        self.python = str(root / "bin" / "python")
        venv.create(root, with_pip=False, symlinks=True)
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)}))
        beside = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (self.site / "beside.pth").write_text(beside)
        (root / "never.py").write_text('raise SystemExit("it was run")\n')

    def install(self, *sources):
        """One call of pip for all. It builds in copies: the checkout stays clean."""
        copies = [shutil.copytree(source, self.root / "src" / source.name) for source in sources]
        pip = ["-m", "pip", "--disable-pip-version-check", "--quiet", "--no-cache-dir", "install"]
        self.run(*pip, "--no-index", "--no-deps", "--no-build-isolation", *map(str, copies)).check_returncode()

    def add(self, kind, module):
        """A distribution of one module, as pip would leave it."""
        info = self.site / f"rdzv_bad_{kind}-1.0.dist-info"
        info.mkdir()
        (self.site / f"rdzv_bad_{kind}.py").write_text(module)
        extra = "Requires-Dist: rdzv-absent-client>=2; extra == 'client'\nProvides-Extra: client\n"
        name = f"Metadata-Version: 2.1\nName: rdzv-bad-{kind.replace('_', '-')}\nVersion: 1.0\n"
        (info / "METADATA").write_text(name + (extra if kind == "missing_dependency" else ""))
        plugin = "twin" if kind.startswith("twin") else kind
        (info / "entry_points.txt").write_text(f"[rdzv_plugins]\n{plugin} = rdzv_bad_{kind}\n")

    def variables(self, **variables):
        """The environment of a process: this one's, less what would lead the launcher, and ``variables``."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "RDZV_", "TOY_", "TORCHELASTIC_"))}
        return kept | {"OMP_NUM_THREADS": "1"} | variables

    def run(self, *arguments, cwd=None, **variables):
        """``python ARGUMENTS`` to its end."""
        return subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=cwd,
            env=self.variables(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def rdzv_run(self, *arguments, **variables):
        """``rdzv-run ARGUMENTS`` to its end."""
        return self.run("-m", "rdzv_launcher.run.cli", *arguments, cwd=self.root, **variables)


@pytest.fixture(scope="session")
def bad_env(tmp_path_factory):
    """Every kind of bad plug-in, all at once."""
    env = Environment(tmp_path_factory.mktemp("bad") / "env")
    for kind, module in BAD.items():
        env.add(kind, module)
    return env


@pytest.fixture(scope="session")
def toy_env(tmp_path_factory):
    """Two well-made third-party plug-ins."""
    env = Environment(tmp_path_factory.mktemp("toy") / "env")
    env.install(HERE / "toy", HERE / "toy_hooks")
    return env


@pytest.fixture
def start(toy_env, tmp_path):
    """Starts ``python ARGUMENTS`` in ``toy_env``, side by side with others. None outlives the test."""
    with closing(Agents(tmp_path)) as agents:

        def start(*arguments, **variables):
            env = toy_env.variables(**{MARK: agents.mark}, **variables)
            output = agents.next_output()
            return agents.add(cold([toy_env.python, *map(str, arguments)], output, env), output)

        yield start
