"""``openmpi``: ``mpirun --map-by ppr:1:node rdzv-run train.py``, with Open MPI's mpirun or PRRTE's prterun.

Sources: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html for OMPI_COMM_WORLD_*; the PMIx standard,
https://pmix.github.io/standard, for PMIX_NAMESPACE and PMIX_RANK. No variable names the host of the first process.
Within Slurm it is the first of the allocation; elsewhere it is mpirun's host, which is in OMPI_MCA_orte_hnp_uri (Open
MPI up to 4) or in the namespace ``prterun-HOST-PID@1`` (from 5 on). If mpirun runs on a different machine from the
first process, that process says so and ends.
"""

from __future__ import annotations

import re
import socket

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, hook_of

_NAMESPACE = r"(?:prterun|prte)-(?P<host>[\w.-]+)-(?P<pid>[0-9]+)@[0-9]+"
_URI = r"(?P<job>[0-9]+)\.[0-9]+;tcp://(?P<host>[0-9.]+)"


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What mpirun says about this process.

    For prterun, with PMIx alone, only if the number of nodes is given.
    """
    found = _mpirun(variables)
    name = Fact(f"mpirun-{'-'.join(found.value.groups())}", found.source) if found is not None else None
    if variables.text("OMPI_COMM_WORLD_RANK") is None:
        if not nodes_given:
            return None
        rank = variables.needed_number("PMIX_RANK")
        return Facts("prterun", node_rank=rank, hosts=lambda count: _first_host(variables, rank.value), run_id=name)
    nodes = variables.needed_number("OMPI_COMM_WORLD_SIZE", 1)
    rank = variables.below(variables.needed_number("OMPI_COMM_WORLD_RANK"), nodes)
    local = variables.needed_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    if local.value > 1:
        raise variables.refused(
            f"mpirun started this command {local.value} times on this node ({local}), but it starts the workers itself",
            "Start it once per node (mpirun --map-by ppr:1:node rdzv-run ...) and give the number of workers: "
            f"--nproc-per-node={local.value}.",
        )
    return Facts(
        "mpirun", nodes=nodes, node_rank=rank, hosts=lambda count: _first_host(variables, rank.value), run_id=name
    )


def _mpirun(variables: Variables) -> Fact[re.Match[str]] | None:
    """What names mpirun's process and its host."""
    for name, form in (("PMIX_NAMESPACE", _NAMESPACE), ("OMPI_MCA_orte_hnp_uri", _URI)):
        fact = variables.text(name)
        if fact is not None and (found := re.match(form, fact.value)):
            return Fact(found, name)
    return None


def _first_host(variables: Variables, rank: int) -> Fact[tuple[str, ...]] | None:
    """The first host. It is not known of any other that mpirun has started a process there.

    mpirun may use only a part of an allocation.
    """
    listed = variables.text("SLURM_JOB_NODELIST")
    if listed is not None:
        return Fact((variables.expanded(listed)[0],), listed.source)
    found = _mpirun(variables)
    if found is None:
        return None
    host = Fact(found.value["host"], found.source)
    if rank == 0 and not _is_here(host.value):
        raise variables.refused(
            f"mpirun runs on {host.value} ({host.source}), but the first process on {socket.gethostname()}: the others "
            "cannot know the endpoint",
            "Give --rdzv-endpoint=HOST:PORT with the first node's name on every node, or start mpirun there.",
        )
    return Fact((host.value,), host.source)


def _is_here(host: str) -> bool:
    """True for the name or an address of this machine."""
    if host.partition(".")[0] == socket.gethostname().partition(".")[0]:
        return True
    with socket.socket() as trial:
        try:
            trial.bind((host, 0))
        except OSError:
            return False
    return True


rdzv_resolve_request = hook_of("openmpi", read)
