"""``pbs``: tasks that pbsdsh or pbs_tmrsh has started in a job of PBS Professional, OpenPBS or Torque.

Sources: *PBS Professional Reference Guide*, PBS Environment Variables, and pbsdsh(1B) of OpenPBS; for Torque,
https://docs.adaptivecomputing.com/torque, *Exported batch environment variables* (PBS_NUM_NODES is Torque's alone). The
script of a job and the shell of ``qsub -I`` have PBS_NODENUM=0 and PBS_TASKNUM=1, and a launch there remains a job on
its own machine. PBS_NODEFILE can be read on all nodes with some installations, and only on the first with others.
"""

from __future__ import annotations

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, derived_port, hook_of

_FILE = "PBS_NODEFILE"


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What PBS says about this task."""
    rank = variables.needed_number("PBS_NODENUM")
    path = variables.environ.get(_FILE, "")
    hosts = _hosts(path)
    nodes = Fact(len(hosts), f"the hosts of {_FILE}") if hosts else variables.number("PBS_NUM_NODES", 1)
    if nodes is None and not nodes_given:
        raise variables.refused(
            f"{_FILE}={path} cannot be read on this node, so the number of nodes is unknown",
            "Give --nnodes and --rdzv-endpoint=HOST:PORT, the same on every node; the job script can read the file.",
        )
    if nodes is not None:
        variables.below(rank, nodes)
    job = variables.needed_text("PBS_JOBID")
    number = job.value.partition(".")[0].partition("[")[0]
    return Facts(
        "PBS",
        nodes=nodes,
        node_rank=rank,
        hosts=lambda count: Fact(tuple(hosts[:count]), _FILE) if hosts else None,
        port=Fact(derived_port(int(number)), job.source) if number.isdecimal() and "[" not in job.value else None,
        run_id=Fact(f"pbs-{job.value}", job.source),
        run_id_lasts=True,
    )


def _hosts(path: str) -> list[str]:
    """The hosts, each once, in the order of the file; empty if it cannot be read here."""
    try:
        with open(path) as lines:
            return list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    except (OSError, UnicodeDecodeError):
        return []


rdzv_resolve_request = hook_of("pbs", read)
