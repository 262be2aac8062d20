"""``mpirun rdzv-run train.py`` with real ones: Open MPI 4, and 5, which is PRRTE's; with and without Slurm."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from kits.launcher.harness import BIN, AgentProcess
from kits.needed import programs_needed
from kits.slurm.slurm_jobs import User
from kits.slurm.slurm_kit import NODES

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

NAMES = ("PMIX_HOSTNAME", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
AGENT = {"4": "plm_rsh_agent", "5": "plm_ssh_agent"}
"""What mpirun calls the program that starts its daemon on another host."""


versions = pytest.mark.parametrize("version", ["4", "5"])


def mpirun(version: str) -> str:
    """5 is a package of the test environment, 4 Debian's; orted is 4's alone."""
    if version == "5":
        return str(BIN / "mpirun")
    programs_needed("orted", install="openmpi-bin")
    return str(Path(str(shutil.which("orted"))).with_name("mpirun"))


def agent(user: User, version: str) -> list[str]:
    """Options of mpirun, in place of ssh."""
    program = user.cluster.directory / "agent"
    cases = [
        f'{node}) exec {shlex.join(user.slurm.enter(node, user.cluster.directory))} sh -c "$*";;' for node in NODES
    ]
    program.write_text(f"#!/bin/bash\nhost=$1; shift\ncase $host in {' '.join(cases)} esac\n")
    program.chmod(0o755)
    return ["--mca", AGENT[version], str(program)]


def ranks(step: AgentProcess) -> list[tuple[str, ...]]:
    names = ("RANK", "WORLD_SIZE", "PMIX_HOSTNAME")
    return sorted(tuple(each[name] for name in names) for each in step.reports())


@versions
def test_in_a_job_of_slurm_its_first_node_is_the_place(user: User, version: str) -> None:
    command = ["--allow-run-as-root", "--map-by", "ppr:1:node", "rdzv-run", "-v", user.script("asked.py"), *NAMES]
    step = user.start("ctl", "salloc", "--nodes=2", mpirun(version), *command)
    assert step.wait() == 0, step.text
    assert ranks(step) == [("0", "2", "n1"), ("1", "2", "n2")]
    assert re.search(r"--nnodes=2 from OMPI_COMM_WORLD_SIZE \(plug-in openmpi\)", step.text)
    assert re.search(r"--rdzv-endpoint=n1:2\d{4} from SLURM_JOB_NODELIST, the port from the run id", step.text)


@pytest.mark.parametrize(("version", "program"), [("4", "mpirun"), ("5", "mpirun"), ("5", "prterun")])
def test_without_slurm_the_place_is_the_host_of_mpirun(user: User, version: str, program: str) -> None:
    path = mpirun(version) if program == "mpirun" else str(BIN / program)
    options = ["--allow-run-as-root", "--host", "n1,n2", *agent(user, version), "--map-by", "ppr:1:node"]
    nodes = ["--nnodes=2"] if program == "prterun" else []  # PMIx alone does not say how many there are
    where = {f"{name}_PREFIX": str(BIN.parent) for name in ("PRTE", "PMIX")} if program == "prterun" else {}
    step = user.start("n1", path, *options, "rdzv-run", *nodes, user.script("asked.py"), *NAMES, **where)
    assert step.wait() == 0, step.text
    assert ranks(step) == [("0", "2", "n1"), ("1", "2", "n2")]


@versions
def test_on_another_machine_it_is_refused_by_name(user: User, version: str) -> None:
    options = ["--allow-run-as-root", "--host", "n1,n2", *agent(user, version), "--map-by", "ppr:1:node"]
    step = user.start("ctl", mpirun(version), *options, "rdzv-run", user.script("asked.py"))
    assert step.wait() == 2, step.text
    assert re.search(r"mpirun runs on (ctl|10\.77\.1\.1) \(\w+\), but the first process on n1", step.text)
