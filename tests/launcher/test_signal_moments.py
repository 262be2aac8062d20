"""A signal at a moment in which torch would make something else of it."""

from __future__ import annotations

import pytest
from harness import Cluster

SCRIPT = """
import inspect, os, signal, sys
from torch.distributed.elastic.metrics import api
from rdzv_launcher.run.cli import main

lines, first = inspect.getsourcelines(api.prof)
MOMENT = first + next(number for number, line in enumerate(lines) if "start = time.time()" in line)

def in_prof(frame, event, _):
    if event == "line" and frame.f_lineno == MOMENT and frame.f_locals["f"].__name__ == sys.argv[1]:
        sys.settrace(None)
        frame.f_trace = None
        os.kill(os.getpid(), signal.SIGTERM)
    return in_prof

sys.settrace(lambda frame, event, _: in_prof if frame.f_code.co_filename == api.__file__ else None)
sys.exit(main(["--no-python", "/bin/sleep", "600"]))
"""


@pytest.mark.parametrize("method", ["_monitor_workers", "_rendezvous"])
def test_signal_in_the_first_instruction_of_a_method_that_torch_measures(cluster: Cluster, method: str) -> None:
    """Torch (2.13) raises an UnboundLocalError there."""
    script = cluster.directory / "at_that_moment.py"
    script.write_text(SCRIPT)
    agent = cluster.start(["python", script, method])
    assert agent.wait() == 143, agent.text
    assert "the workers of this node were stopped" in agent.text
