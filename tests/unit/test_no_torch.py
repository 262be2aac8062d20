"""Lists are instant: what does without torch does not import it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "from rdzv_launcher.tools.cli import main; main(['backends']); main(['backends', '--json'])",
        "import rdzv_plugins, rdzv_plugins.host, rdzv_plugins.torch_bridge, rdzv_plugins.worker, "
        "rdzv_launcher.run.cli, rdzv_launcher.run.preparation, rdzv_launcher.run.check, rdzv_launcher.run.signals, "
        "rdzv_launcher.run.agent.fence, rdzv_launcher.run.agent.loop, rdzv_launcher.run.keeper.keeper, "
        "rdzv_launcher.run.keeper.template; from rdzv_plugins.kit import *",
        "from rdzv_launcher import *; LaunchConfig(1, 1, 1); elastic_launch, WorkersFailed; "
        "from rdzv_plugins.host import PluginHost; PluginHost.load().catalog.find('c10d').backend.options()",
    ],
)
def test_statement_imports_no_torch(statement):
    check = "import sys; loaded = sorted(m for m in sys.modules if m.partition('.')[0] == 'torch'); assert not loaded"
    subprocess.run([sys.executable, "-c", f"{statement}\n{check}, loaded"], check=True, stdout=subprocess.DEVNULL)


def test_list_may_be_cut_short_by_its_reader():
    command = f"{sys.executable} -m rdzv_launcher.tools backends | head -1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
