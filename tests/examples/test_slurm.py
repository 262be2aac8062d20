"""examples/slurm/train.sbatch with real agents, real workers and a real etcd; Slurm's own programs have stand-ins."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kits import KITS
from kits.etcd import etcd_kit
from kits.launcher.harness import BIN, Agent, Cluster, wait_until

from rdzv_plugins.kvstore.sockets.listening import port_holder

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(480)]

SCRIPT = Path(__file__).parents[2] / "examples/slurm/train.sbatch"
STAND_INS = KITS / "examples" / "slurm_stand_ins.py"
KNOWN = {  # options of sbatch that the script sets for itself
    *("--job-name", "--ntasks-per-node", "--cpus-per-task", "--time", "--output", "--open-mode", "--gpus-per-node"),
    *("--no-kill", "--requeue", "--signal"),
}


class SlurmJob:
    """The script as sbatch would start it on the first of its nodes."""

    def __init__(
        self, jobs: Cluster, arguments: Sequence[object], *, gpus: str = "", number: str = "4711", **env: str
    ) -> None:
        self.jobs, self.folder = jobs, jobs.directory / "slurm"
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        for name in ("srun", "scontrol", "scancel"):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_INS} {name} "$@"\n')
            (programs / name).chmod(0o755)
        slurm = {
            "SLURM_JOB_ID": number,
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "localhost,node2",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_CLUSTER_NAME": "cluster",
            "STAND_IN_DIR": str(self.folder),
            "STAND_IN_GPUS": gpus,
            "PATH": f"{programs}:{BIN}:{os.environ['PATH']}",
        }
        self.batch: Agent = jobs.start(["/bin/bash", SCRIPT, *arguments], **(slurm | env))

    def reports(self, node: int) -> list[dict[str, Any]]:
        """What the workers of a node have said, in order."""
        return [json.loads(line) for line in re.findall(rf"^{node}: (\{{.*\}})$", self.batch.text, re.MULTILINE)]

    def wait_world(self, size: int, *nodes: int) -> None:
        """Until the newest workers of these nodes are in a world of that size."""

        def all_are() -> bool:
            return all(self.reports(node) and self.reports(node)[-1]["WORLD_SIZE"] == str(size) for node in nodes)

        wait_until(lambda: all_are() or self.batch.process.poll() is not None, 120, lambda: self.batch.text)
        assert all_are(), f"no world of {size} on nodes {nodes}:\n{self.batch.text}"

    def agent(self, node: int) -> int:
        """Its pid."""
        return int((self.folder / f"task-{node}").read_text())

    def signal(self, number: signal.Signals) -> None:
        """As Slurm does it: all processes of the step, and not the script."""
        command = [self.folder / "bin/scancel", f"--signal={number.name.removeprefix('SIG')}", "4711"]
        subprocess.run(command, env=os.environ | {"STAND_IN_DIR": str(self.folder), "SLURM_JOB_ID": "4711"}, check=True)

    def lose(self, node: int) -> None:
        """All processes of a node, and srun knows that it is gone."""
        (self.folder / f"lost-{node}").touch()
        for pid in (self.agent(node), *(report["PID"] for report in self.reports(node))):
            self.jobs.kill(pid)


def meets(jobs: Cluster) -> list[Path]:
    """The script whose ranks meet in the workers' store, and stay there until the second of these files exists."""
    return [jobs.script("meets.py"), jobs.directory / "stop"]


def test_bash_reads_it() -> None:
    assert subprocess.run(["bash", "-n", SCRIPT], capture_output=True, text=True).stderr == ""


def test_directives_are_options_of_sbatch_and_before_the_first_command() -> None:
    lines = SCRIPT.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    found = [number for number, line in enumerate(lines) if re.match("#+SBATCH", line)]
    assert max(found) < first  # sbatch reads no further
    assert {re.split(r"[ =]", lines[number])[1] for number in found} == KNOWN


def test_without_sbatch_it_says_so() -> None:
    done = subprocess.run(["bash", SCRIPT, "x.py"], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1
    assert "start this script with sbatch" in done.stderr


def test_nodes_meet_at_etcd_each_with_its_rank_and_its_gpus(jobs: Cluster, etcd: etcd_kit.Cluster) -> None:
    job = SlurmJob(jobs, meets(jobs), gpus="1,2", ETCD_ENDPOINTS=etcd.endpoint)
    job.wait_world(3, 0, 1)
    assert {report["GROUP_RANK"] for report in job.reports(0)} == {"0"}
    assert {report["GROUP_RANK"] for report in job.reports(1)} == {"1"}
    assert "agents on the same machine" not in job.batch.text  # the warning for nodes without a given rank
    assert etcd.keys("/rdzv-plugins/cluster-4711-0/")
    (jobs.directory / "stop").touch()
    assert job.batch.wait() == 0, job.batch.text
    assert not etcd.keys("/rdzv-plugins/")
    assert not (job.folder / "requeued").exists()


@pytest.mark.parametrize(("what", "code"), [("node", 0), ("agent", 137)])
def test_the_first_node_is_lost_and_the_other_goes_on(
    jobs: Cluster, etcd: etcd_kit.Cluster, what: str, code: int
) -> None:
    """The other's worker ends well: the job has succeeded. An agent that was killed where Slurm still is has failed."""
    job = SlurmJob(jobs, meets(jobs), NPROC_PER_NODE="1", ETCD_ENDPOINTS=etcd.endpoint)
    job.wait_world(2, 0, 1)
    if what == "node":
        job.lose(0)
    else:
        jobs.kill(job.agent(0))
    job.wait_world(1, 1)
    (jobs.directory / "stop").touch()
    job.batch.wait_for(r"srun: task 1 ended: 0")
    assert job.batch.wait() == code, job.batch.text
    assert [report["MET"] for report in job.reports(1)] == [["rank 0", "rank 1"], ["rank 0"]]


def test_without_etcd_the_first_host_is_the_endpoint(jobs: Cluster) -> None:
    job = SlurmJob(jobs, meets(jobs), number=str(jobs.port))
    job.wait_world(2, 0, 1)
    port = 20000 + jobs.port % 10000
    assert f"joining at localhost:{port} by parallel" in job.batch.text
    first = 0 if f"pid {job.agent(0)} " in port_holder(port) else 1  # here each node is on the first host
    job.lose(1 - first)
    job.wait_world(1, first)
    (jobs.directory / "stop").touch()
    job.batch.wait_for(f"srun: task {first} ended: 0")
    assert job.batch.wait() == 0, job.batch.text


def test_when_the_time_is_up_the_workers_save_and_the_job_is_requeued(jobs: Cluster, etcd: etcd_kit.Cluster) -> None:
    """Slurm tells all processes of the step: those of the workers that know nothing of it, too."""
    saves = [jobs.script("saves.py"), jobs.directory / "stop", 0.02]
    job = SlurmJob(jobs, saves, ETCD_ENDPOINTS=etcd.endpoint, SLURM_RESTART_COUNT="3")
    job.wait_world(2, 0, 1)
    assert etcd.keys("/rdzv-plugins/cluster-4711-3/")
    job.signal(signal.SIGUSR1)
    assert job.batch.wait() == 81, job.batch.text
    assert "got SIGUSR1" in job.batch.text
    assert "too few nodes are left to go on" in job.batch.text
    assert (job.folder / "requeued").read_text() == "4711"
    assert not etcd.keys("/rdzv-plugins/")
    steps = {json.loads(path.read_text())["step"] for path in jobs.directory.glob("saved-1-?")}
    assert len(steps) == 1, job.batch.text
    assert len([*jobs.directory.glob("saved-1-?")]) == 2


@pytest.mark.parametrize("password", ["right", "wrong"])
def test_with_tls_and_a_password(jobs: Cluster, tmp_path: Path, password: str) -> None:
    tls, users = etcd_kit.Tls(tmp_path / "tls"), etcd_kit.Users()
    with etcd_kit.etcd(tmp_path, tls=tls, users=users) as etcd:
        credentials = tmp_path / "credentials"
        credentials.write_text(f"{users.user}:{users.password if password == 'right' else 'guess'}\n")
        (jobs.directory / "stop").touch()
        job = SlurmJob(
            jobs,
            meets(jobs),
            ETCD_ENDPOINTS=etcd.endpoint.replace("https://", ""),
            ETCD_CREDENTIALS=str(credentials),
            ETCD_CACERT=tls.cacert,
        )
        assert job.batch.wait() == (0 if password == "right" else 77), job.batch.text
        assert [len(job.reports(node)) for node in (0, 1)] == ([1, 1] if password == "right" else [0, 0])
