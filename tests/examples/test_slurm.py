"""examples/slurm/train.sbatch: what it starts at etcd, as rdzv-run reads it. tests/slurm has it run by Slurm itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from kits import ROOT

from rdzv_launcher.run.parser import parse_arguments

pytestmark = pytest.mark.thorough

SCRIPT = ROOT / "examples/slurm/train.sbatch"
PROGRAMS = {
    "srun": 'until [ "$1" = bash ]; do shift; done; exec "$@"',
    "rdzv-run": 'printf "%s\\n" "$@" >"$STUBS/run.args"; exit 1',
    "scontrol": '[ "$1" = requeue ] && touch "$STUBS/requeued" || printf "first\\nsecond\\n"',
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "first,second",
    "SLURM_CLUSTER_NAME": "cluster",
    "SLURM_NODEID": "1",
    "SLURM_RESTART_COUNT": "3",
    "SLURM_GPUS_ON_NODE": "4",
}
"""What sbatch tells the script on the first of two nodes; its task is that of the second."""
AT_ETCD = {"ETCD_ENDPOINTS": "a:1,b:2", "ETCD_CREDENTIALS": "/secret", "ETCD_CACERT": "/ca", "MIN_NODES": "2"}


@pytest.mark.parametrize(
    ("env", "meet", "nodes", "conf"),
    [
        ({}, ("parallel", f"first:{20000 + 4711}"), "1:2", ""),
        (AT_ETCD, ("etcd", "a:1,b:2"), "2:2", ",credentials=/secret,cacert=/ca"),
    ],
    ids=["at its first node", "at etcd"],
)
def test_what_a_task_starts(tmp_path: Path, env: dict[str, str], meet: tuple[str, str], nodes: str, conf: str) -> None:
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    variables = SLURM | env | {"STUBS": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", SCRIPT, "train.py", "--epochs=3"], capture_output=True, text=True, env=variables)
    assert done.returncode == 1, done.stderr
    assert not (tmp_path / "requeued").exists(), "it failed, and was not preempted"
    given = parse_arguments((tmp_path / "run.args").read_text().splitlines())
    assert (given.rdzv_backend, given.rdzv_endpoint) == meet
    assert (given.nnodes, given.node_rank, given.nproc_per_node) == (nodes, 1, "4")
    assert (given.rdzv_id, given.rdzv_conf) == ("cluster-4711-3", f"last_call_timeout=60{conf}")
    assert (given.notice_signals, given.preempt_grace) == ("USR1", 120)
    assert (given.training_script, given.training_script_args) == ("train.py", ["--epochs=3"])
