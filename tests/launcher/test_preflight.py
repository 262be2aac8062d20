"""--preflight among nodes: a plug-in finds one of them broken, which the job does without until it is well."""

from __future__ import annotations

from pathlib import Path

from kits.launcher.elastic_kit import Job, Meeting, in_one_round, parallel_only
from kits.launcher.harness import plug_in

FAN = """
import os
from rdzv_plugins import NodeCheck, hookimpl

@hookimpl
def rdzv_preflight(request):
    if os.path.exists(os.environ.get("TEST_FAN", "")):
        return NodeCheck("fan", "broken", "it stands still")
"""


@parallel_only
def test_a_broken_node_is_left_out_until_the_round_is_over_and_it_is_well(meeting: Meeting, tmp_path: Path) -> None:
    hooks, still = plug_in(tmp_path, "rdzv_test_fan", FAN), tmp_path / "still"
    still.touch()
    flags = ("--preflight=plugins", "--max-restarts=1")
    job = Job(meeting, "2:3", conf="last_call_timeout=60,allow_same_host=true", flags=flags)
    broken = job.node(PYTHONPATH=hooks, TEST_FAN=str(still))
    well = [job.node(), job.node()]
    before = in_one_round(*well)
    for agent in well:
        agent.wait_for("warning: .*fan.*")
    assert not broken.reports()
    still.unlink()
    meeting.kill(job.workers(well[0])[0])
    in_one_round(*well, broken, after=before)
    job.finish(*well, broken)
