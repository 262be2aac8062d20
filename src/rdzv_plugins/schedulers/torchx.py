"""``torchx``: replicas of a role whose entry point is ``rdzv-run``; ``dist.ddp`` gives all flags by itself.

Source: https://pytorch.org/torchx, ``torchx.specs.macros`` (rank0_env) and the schedulers' pages: TORCHX_JOB_ID is a
handle, SCHEDULER://SESSION/APP; TORCHX_RANK0_HOST is set by those schedulers that know it, to localhost on the first
replica; TORCHX_REPLICA_IDX by the batch services. Nothing tells how many replicas there are, so nothing is read unless
``--nnodes`` asks for several nodes. On Slurm the variables of srun say more, and are used instead.
"""

from __future__ import annotations

import socket

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, hook_of


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What torchx says about this replica, if the number of nodes is given."""
    if not nodes_given:
        return None
    handle = variables.needed_text("TORCHX_JOB_ID")
    scheduler, _, path = handle.value.rpartition("://")
    app = path.rpartition("/")[2].rpartition(":")[2]
    if not app:
        raise variables.wrong(handle.source, "is not of the form SCHEDULER://SESSION/APP")
    host = variables.text("TORCHX_RANK0_HOST")
    if host is not None and host.value == "localhost" and not scheduler.startswith("local"):
        host = Fact(socket.gethostname(), host.source)  # the first replica, which the others know by its name
    return Facts(
        "torchx",
        node_rank=variables.number("TORCHX_REPLICA_IDX"),
        hosts=lambda count: Fact((host.value,), host.source) if host is not None else None,
        run_id=Fact(app, handle.source),
        run_id_lasts=True,
    )


rdzv_resolve_request = hook_of("torchx", read)
