"""Lists are instant, and nobody pays for what was not asked for: what does without torch does not import it."""

import subprocess
import sys

import pytest

TORCH = "torch"
SLOW_METADATA = "email importlib.metadata ssl pickle"
METRICS = "http.server prometheus_client rdzv_launcher.run.metrics rdzv_launcher.run.agent_metrics"


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("from rdzv_launcher.tools.cli import main; main(['backends']); main(['backends', '--json'])", TORCH),
        (
            "import rdzv_plugins, rdzv_plugins.registry, rdzv_plugins.torchrun, rdzv_plugins.worker, "
            "rdzv_launcher.run.cli, rdzv_launcher.run.preparation, rdzv_launcher.run.check, rdzv_launcher.run.signals, "
            "rdzv_launcher.run.agent.fence, rdzv_launcher.run.agent.loop, rdzv_launcher.run.supervisor.supervisor, "
            "rdzv_launcher.run.supervisor.template; from rdzv_plugins.kit import *",
            TORCH,
        ),
        (
            "from rdzv_launcher import *; LaunchConfig(1, 1, 1); elastic_launch, WorkersFailed; "
            "from rdzv_plugins.registry import PluginHost; PluginHost.load().catalog.find('c10d').backend.options()",
            TORCH,
        ),
        ("from rdzv_plugins.registry import PluginHost; PluginHost.load()", SLOW_METADATA),
        ("import rdzv_launcher.run.launch", METRICS),
        ("import rdzv_launcher.run.timeline", "opentelemetry"),
        (
            "from rdzv_launcher.run.cli import main; "
            "assert main(['--rdzv-backend=parallel', '--rdzv-endpoint=127.0.0.1:0', '--no-python', 'true']) == 0",
            f"{TORCH} {SLOW_METADATA} {METRICS} asyncio hmac secrets rdzv_plugins.kit.client",
        ),
    ],
)
def test_statement_imports_no_torch(statement, without):
    """Nor what else is named."""
    check = f"import sys; found = {set(without.split())} & sys.modules.keys(); assert not found, found"
    subprocess.run([sys.executable, "-c", f"{statement}\n{check}"], check=True, stdout=subprocess.DEVNULL)


def test_list_may_be_cut_short_by_its_reader():
    command = f"{sys.executable} -m rdzv_launcher.tools backends | head -1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
