"""What Slurm does to a job that runs: a requeue, a signal, the end of its time, nodes that are lost or set down."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from kits import ROOT
from kits.slurm.slurm_jobs import BatchJob, User

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

EXAMPLE = ROOT / "examples/slurm/train.sbatch"


def runs_of(job: BatchJob) -> list[str]:
    """The run ids of its workers, each once, in their order."""
    return [*dict.fromkeys(each["TORCHELASTIC_RUN_ID"] for each in job.reports())]


def saved(directory: Path) -> dict[str, int]:
    """The step that each rank has saved, by round and rank."""
    return {path.name: json.loads(path.read_text())["step"] for path in directory.glob("saved-*-?")}


@pytest.mark.parametrize("why", ["by hand", "a node is down"])
def test_a_requeued_job_starts_again_as_another_run(user: User, why: str) -> None:
    job = user.sbatch(
        f"srun --label rdzv-run {user.script('says.py')} {user.stop} 0", options=["--nodes=2", "--requeue"]
    )
    job.wait_reports(2)
    if why == "by hand":
        user.slurm.run("scontrol", "requeue", job.number)
    else:
        user.slurm.set_down("n2")
    job.wait_reports(4)
    assert runs_of(job) == [f"bench-{job.number}.0-{restarts}" for restarts in (0, 1)]
    assert {each["WORLD_SIZE"] for each in job.reports()} == {"2"}
    user.end_workers()
    assert job.wait() == ("COMPLETED", 0), job.text


def test_a_signal_is_a_notice_and_the_example_asks_for_another_start(user: User) -> None:
    """``scancel --signal`` reaches all processes of the steps, those of workers that know nothing of it, too."""
    script = [user.script("saves.py"), user.stop, 0.02]
    job = user.sbatch(EXAMPLE, *script, options=["--nodes=2", "--cpus-per-task=1"], MIN_NODES="2", NPROC_PER_NODE="1")
    job.wait_reports(2)
    user.slurm.run("scancel", "--signal=USR1", job.number)
    job.wait_reports(4)
    steps = saved(user.cluster.directory)
    assert steps.keys() == {"saved-1-0", "saved-1-1"}
    assert len({*steps.values()}) == 1, "all ranks save the same step"
    assert {each["FROM"] for each in job.reports()[2:]} == {*steps.values()}, "the second try goes on from there"
    user.end_workers()
    assert job.wait() == ("COMPLETED", 0), job.text
    assert user.slurm.job(job.number)["Restarts"] == "1"


def test_the_end_of_the_time_is_a_notice(user: User) -> None:
    """Slurm looks every 30 s whose time is nearly up, so it may say so that much early."""
    flags = "--rdzv-backend=parallel --preempt-grace=20 --notice-signals=USR1"
    job = user.sbatch(
        f"srun --label rdzv-run {flags} {user.script('says.py')} {user.stop} 0; exit $?",
        options=["--nodes=2", "--time=10", "--signal=USR1@30"],
    )
    job.wait_reports(2)
    user.slurm.run("scontrol", "update", f"jobid={job.number}", "timelimit=1")  # a signal before would end the agents
    assert job.wait() == ("FAILED", 81), job.text
    assert "got SIGUSR1" in job.text
    assert len(job.reports()) == 2


@pytest.mark.parametrize(("node", "lost"), [("n1", True), ("n2", False)], ids=["lost", "set down"])
def test_a_node_that_goes_leaves_the_job_to_the_others(user: User, node: str, lost: bool) -> None:
    """The first serves the endpoint: with fewer nodes than were started there are further ones, without a flag."""
    command = ["rdzv-run", "--rdzv-backend=parallel", "--nnodes=2:3", "--rdzv-conf=ttl=4", user.script("says.py")]
    step = user.srun("--nodes=3", "--no-kill", "--kill-on-bad-exit=0", "--label", *command, user.stop, 0)
    step.wait_for(r"(?s)(\{.*WORLD_SIZE\": \"3\".*){3}")
    user.slurm.lose(node) if lost else user.slurm.set_down(node)
    step.wait_for(r"(?s)(\{.*WORLD_SIZE\": \"2\".*){2}")
    user.end_workers()
    if lost:
        user.slurm.set_down(node)  # or Slurm notices by itself, after SlurmdTimeout
    assert step.wait() == (0 if lost else 137), step.text  # srun counts the task that Slurm has killed
    assert not re.search("(?i)traceback", step.text)
