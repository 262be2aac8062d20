"""``slurm``: ``srun rdzv-run train.py`` is a whole job, also in a job array, or with many tasks on each node.

Only srun's tasks count: in the script of sbatch, and in the shell of salloc or ``srun --pty``, a launch remains a job
on its own machine. Sources of the variables: https://slurm.schedmd.com/srun.html, *OUTPUT ENVIRONMENT VARIABLES*;
https://slurm.schedmd.com/sbatch.html for SLURM_RESTART_COUNT and SLURM_CLUSTER_NAME;
https://slurm.schedmd.com/topology.html for blocks (and the comment on the form in Slurm's topology/block plug-in);
https://slurm.schedmd.com/heterogeneous_jobs.html. In a step over several components of a heterogeneous job,
SLURM_NODEID and SLURM_STEP_* count over all of them, one component after the other, and SLURM_JOB_ID is that of the
first. SLURM_STEP_NODELIST is sorted nevertheless: the order is in the lists of the components (seen with 22.05).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, derived_port, has_terminal, hook_of

logger = logging.getLogger(__name__)

_ADDRESS, _PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"
_SHARED = ("switch", "block")
_STEPS_APART = 5003
"""The distance between the ports of two steps of one job: more than that of jobs running on a node at one time."""


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What srun says about this task; None in an interactive shell: srun's tasks have no terminal without ``--pty``."""
    if has_terminal():
        logger.debug("ignoring srun's variables (plug-in slurm): this is an interactive shell")
        return None
    job, step = variables.needed_number("SLURM_JOB_ID"), variables.needed_number("SLURM_STEP_ID")
    nodes = variables.needed_number("SLURM_STEP_NUM_NODES", 1)
    rank = variables.below(variables.needed_number("SLURM_NODEID"), nodes)
    process = variables.needed_number("SLURM_PROCID")
    total = variables.number("SLURM_STEP_NUM_TASKS", 1)
    if total is not None:
        variables.below(process, total)
    tasks = _tasks_of_this_node(variables, nodes, rank)
    local = variables.number("SLURM_LOCALID") or Fact(0, "SLURM_LOCALID")
    variables.below(local, tasks)
    if tasks.value > 1 and local.value == 0:
        _warn_of_shares(variables.environ, tasks)
    gpus = variables.number("SLURM_GPUS_ON_NODE")
    cluster = variables.environ.get("SLURM_CLUSTER_NAME") or "slurm"
    restarts = variables.number("SLURM_RESTART_COUNT") or Fact(0, "SLURM_RESTART_COUNT")
    return Facts(
        launcher="srun",
        nodes=nodes,
        node_rank=rank,
        hosts=lambda count: _hosts(variables, nodes, count),
        port=Fact(derived_port(job.value + _STEPS_APART * step.value), "SLURM_JOB_ID and SLURM_STEP_ID"),
        # a requeued job keeps its number, and a node of the first attempt may still run somewhere
        run_id=Fact(
            f"{cluster}-{job.value}.{step.value}-{restarts.value}", "SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT"
        ),
        run_id_lasts=True,
        domain=_leaf_of(variables),
        workers=tasks if tasks.value > 1 else gpus if gpus is not None and gpus.value else None,
        idle=f"the task with SLURM_LOCALID=0 is this node's agent, and this one has {local}" if local.value else "",
    )


def _tasks_of_this_node(variables: Variables, nodes: Fact[int], rank: Fact[int]) -> Fact[int]:
    """The number of tasks of this node, out of ``2(x3),1``: three nodes with two tasks, and one with one."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    text = variables.text(name)
    if text is None:
        return Fact(1, name)
    counts: list[int] = []
    for each in text.value.split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", each)
        if not found:
            raise variables.wrong(name, "is not of the form 2(x3),1")
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != nodes.value:
        raise variables.wrong(name, f"contradicts {nodes}: it has {len(counts)} nodes")
    return Fact(counts[rank.value], name)


def _hosts(variables: Variables, nodes: Fact[int], count: int) -> Fact[tuple[str, ...]]:
    """The first ``count`` hosts of the step, in the order in which its nodes are numbered."""
    listed = variables.needed_text("SLURM_STEP_NODELIST")
    hosts = variables.expanded(listed)
    components = [each for text in _components(variables) for each in variables.expanded(text)]
    if (numbered := [host for host in components if host in hosts]) and sorted(numbered) == sorted(hosts):
        hosts = numbered
    if len(hosts) != nodes.value:
        raise variables.wrong(listed.source, f"contradicts {nodes}: it has {len(hosts)} hosts")
    return Fact(tuple(hosts[:count]), listed.source)


def _components(variables: Variables) -> Iterator[Fact[str]]:
    """The node lists of a heterogeneous job's components; srun of 22.05 uses the old name for them."""
    count = variables.number("SLURM_HET_SIZE")
    for number in range(count.value if count is not None else 0):
        for name in ("HET", "PACK"):
            listed = variables.text(f"SLURM_JOB_NODELIST_{name}_GROUP_{number}")
            if listed is not None:
                yield listed
                break
        else:
            return


def _warn_of_shares(environ: Mapping[str, str], tasks: Fact[int]) -> None:
    """Warn if srun has given each task a share of the node: workers of one agent have only what its task has."""
    here, node = len(os.sched_getaffinity(0)), environ.get("SLURM_CPUS_ON_NODE", "")
    bound = node.isdecimal() and here < int(node)
    if bound or environ.get("SLURM_GPUS_PER_TASK"):
        logger.warning(
            "srun started %d tasks on this node: the first is the agent of all %d workers, but has only its own share "
            "of the node%s. Better: srun --ntasks-per-node=1 with all CPUs and GPUs, and --nproc-per-node=%d",
            tasks.value,
            tasks.value,
            f", {here} of {node} CPUs" if bound else " (SLURM_GPUS_PER_TASK)",
            tasks.value,
        )


def _leaf_of(variables: Variables) -> Fact[str] | None:
    """The leaf switch or the block of this node: the nodes of one are near each other. None if Slurm knows of neither.

    SLURM_TOPOLOGY_ADDR is ``s0.s2.node7`` with the pattern ``switch.switch.node`` on a cluster with topology/tree,
    ``b1.node7`` with ``block.node`` with topology/block, and the node's name alone without either.
    """
    address, pattern = variables.text(_ADDRESS), variables.text(_PATTERN)
    if address is None or pattern is None:
        return None
    kinds = pattern.value.split(".")
    names = address.value.split(".", len(kinds) - 1)  # a node's name may have a domain of its own
    if len(names) != len(kinds):
        raise variables.wrong(_ADDRESS, f"contradicts {pattern}: {len(names)} parts, not {len(kinds)}")
    leaf = len(kinds) - 2
    return Fact(names[leaf], _ADDRESS) if leaf >= 0 and kinds[-1] == "node" and kinds[leaf] in _SHARED else None


rdzv_resolve_request = hook_of("slurm", read)
