"""``import quick_torch`` for the workers here: what those of the conformance suite import."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[3] / "src/rdzv_plugins/testing/agents/workers/quick_torch.py"))
