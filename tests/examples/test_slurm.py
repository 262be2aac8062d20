"""examples/slurm/train.sbatch: what it starts, as rdzv-run reads it. tests/slurm has it run by Slurm itself."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
from kits import ROOT

from rdzv_launcher.run.parser import parse_arguments

pytestmark = pytest.mark.thorough

SCRIPT = ROOT / "examples/slurm/train.sbatch"
PROGRAMS = {
    "srun": 'echo "$@" >"$STUBS/srun.args"; until [ "$1" = bash ]; do shift; done; exec "$@"',
    "rdzv-run": 'printf "%s\\n" "$@" >"$STUBS/run.args"; exit "$CODE"',
    "scontrol": 'echo "$@" >>"$STUBS/scontrol.args"; [ "$1" = requeue ] || printf "first\\nsecond\\n"',
}


class Started:
    """The script, as sbatch would start it on the first of two nodes; its task is that of the second."""

    def __init__(self, folder: Path, code: int = 0, **env: str) -> None:
        for name, text in PROGRAMS.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        slurm = {
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "first,second",
            "SLURM_CLUSTER_NAME": "cluster",
            "SLURM_NODEID": "1",
            "STUBS": str(folder),
            "CODE": str(code),
            "PATH": f"{folder}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", SCRIPT, "train.py", "--epochs=3"], capture_output=True, text=True, env=slurm | env
        )
        self.code, self.error = done.returncode, done.stderr
        self.srun, self.scontrol = (self._read(folder / f"{name}.args") for name in ("srun", "scontrol"))
        self.arguments: Namespace = parse_arguments(self._read(folder / "run.args").splitlines())

    @staticmethod
    def _read(file: Path) -> str:
        return file.read_text() if file.exists() else ""


def test_nodes_meet_at_the_first_of_them(tmp_path: Path) -> None:
    job = Started(tmp_path)
    assert job.code == 0, job.error
    assert {"--nodes=2", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"} <= {*job.srun.split()}
    given = job.arguments
    assert (given.rdzv_backend, given.rdzv_endpoint) == ("parallel", f"first:{20000 + 4711}")
    assert (given.nnodes, given.node_rank, given.nproc_per_node) == ("1:2", 1, "1")
    assert (given.rdzv_id, given.rdzv_conf) == ("cluster-4711-0", "last_call_timeout=60")
    assert (given.notice_signals, given.preempt_grace) == ("USR1", 120)


def test_nodes_meet_at_etcd_with_a_password_and_tls(tmp_path: Path) -> None:
    more = {"ETCD_ENDPOINTS": "a:1,b:2", "ETCD_CREDENTIALS": "/secret", "ETCD_CACERT": "/ca"}
    given = Started(tmp_path, SLURM_RESTART_COUNT="3", SLURM_GPUS_ON_NODE="4", MIN_NODES="2", **more).arguments
    assert (given.rdzv_backend, given.rdzv_endpoint) == ("etcd", "a:1,b:2")
    assert given.rdzv_conf == "last_call_timeout=60,credentials=/secret,cacert=/ca"
    assert (given.nnodes, given.nproc_per_node, given.rdzv_id) == ("2:2", "4", "cluster-4711-3")


@pytest.mark.parametrize("code", [81, 1])
def test_a_job_that_was_preempted_asks_for_another_start(tmp_path: Path, code: int) -> None:
    job = Started(tmp_path, code)
    assert (job.code, "requeue 4711" in job.scontrol) == (code, code == 81)
