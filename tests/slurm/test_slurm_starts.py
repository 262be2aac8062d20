"""``srun rdzv-run train.py`` and what becomes of it, with a real Slurm of three nodes."""

from __future__ import annotations

import re

import pytest
from kits.slurm.slurm_jobs import User
from kits.slurm.slurm_kit import GPUS, NODES, SWITCHES
from kits.unit import scheduler_variables as of

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


def test_srun_alone_is_a_whole_job(user: User) -> None:
    worker = [user.script("asked.py"), "SLURMD_NODENAME", "SLURM_JOB_ID"]
    step = user.srun("--nodes=3", f"--gpus-per-node={len(GPUS)}", "rdzv-run", "-v", *worker)
    assert step.wait() == 0, step.text
    workers = sorted(step.reports(), key=lambda each: int(each["RANK"]))
    assert [(each["SLURMD_NODENAME"], each["GROUP_RANK"], each["LOCAL_RANK"]) for each in workers] == [
        (node, str(rank), str(local)) for rank, node in enumerate(NODES) for local in range(len(GPUS))
    ]
    assert {each["WORLD_SIZE"] for each in workers} == {"6"}
    job = workers[0]["SLURM_JOB_ID"]
    assert {each["TORCHELASTIC_RUN_ID"] for each in workers} == {f"bench-{job}.0-0"}
    for said in (
        "--nnodes=3 from SLURM_STEP_NUM_NODES (plug-in slurm)",
        "--nproc-per-node=2 from SLURM_GPUS_ON_NODE (plug-in slurm)",
        *(f"--node-rank={rank} from SLURM_NODEID (plug-in slurm)" for rank in range(3)),
        f"--rdzv-endpoint=n1:{20000 + int(job)} from SLURM_STEP_NODELIST, the port from SLURM_JOB_ID and SLURM_STEP_ID",
    ):
        assert said in step.text


def test_the_exit_code_is_that_of_the_script(user: User) -> None:
    """And KillWait is 5 s here, which --preempt-grace is compared with."""
    step = user.srun("--nodes=2", "rdzv-run", "--preempt-grace=60", user.script("says.py"), user.stop, 7)
    step.wait_for(r"(?s)(\{.*){2}")  # or the first to end would stop the other before it has said anything
    user.end_workers()
    assert step.wait() == 7, step.text
    assert len(step.reports()) == 2
    assert re.search(r"--preempt-grace=60 .*\(KillWait in \S+=5\)", step.text)


def test_a_domain_is_the_switch_of_the_node(user: User) -> None:
    """As Slurm says it: a node that is alone at its own is left out, since that was asked for."""
    worker = [user.script("asked.py"), "SLURMD_NODENAME"]
    nodes = ["--nnodes=2:3", "--rdzv-backend=parallel", "--rdzv-conf=min_per_domain=2"]
    step = user.srun("--nodes=3", "rdzv-run", "-v", *nodes, *worker)
    assert step.wait() == 0, step.text
    together, _ = SWITCHES.values()
    assert sorted((each["SLURMD_NODENAME"], each["WORLD_SIZE"]) for each in step.reports()) == [
        (node, "2") for node in together
    ]
    for leaf, of_it in SWITCHES.items():
        assert step.text.count(f"--rdzv-conf domain={leaf} from SLURM_TOPOLOGY_ADDR (plug-in slurm)") == len(of_it)


def test_components_of_a_heterogeneous_job_are_one_training(user: User) -> None:
    worker = ["rdzv-run", user.script("asked.py"), "SLURMD_NODENAME", "SLURM_JOB_ID"]
    step = user.srun("--nodes=1", "--gpus-per-node=2", *worker, ":", "--nodes=2", "--ntasks=2", *worker)
    assert step.wait() == 0, step.text
    assert sorted((each["RANK"], each["GROUP_RANK"], each["WORLD_SIZE"]) for each in step.reports()) == [
        ("0", "0", "4"), ("1", "0", "4"), ("2", "1", "4"), ("3", "2", "4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--nodes=2", "--gpus-per-node=1"], of.SRUN | of.SLURM_TREE),
        (["--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=1"], of.SRUN_TASKS),
    ],
    ids=["srun", "tasks"],
)
def test_variables_of_the_fixtures_are_those_of_slurm(user: User, options: list[str], shown: dict[str, str]) -> None:
    found = user.slurm.run("srun", *options, "env")
    assert not {name for name in shown if not re.search(f"^{name}=.", found, re.MULTILINE)}


def test_variables_of_the_fixtures_are_those_of_slurm_in_its_jobs(user: User) -> None:
    """Of an array, and of a step over the components of a heterogeneous job."""
    array = user.element(user.sbatch("srun env", options=["--array=2"]), 2)
    het = user.sbatch("srun --het-group=0,1 env", options=["--nodes=1", "--gpus-per-node=1", ":", "--nodes=2"])
    for job, shown in ((array, of.SBATCH_ARRAY), (het, of.SRUN_HET)):
        assert job.wait() == ("COMPLETED", 0), job.text
        only_of_gpus, only_after_a_requeue = "SLURM_GPUS_ON_NODE", "SLURM_RESTART_COUNT"
        names = shown.keys() - ({only_of_gpus, only_after_a_requeue} if job is array else set())
        assert not {name for name in names if not re.search(f"^{name}=.", job.text, re.MULTILINE)}
