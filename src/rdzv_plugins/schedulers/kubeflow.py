"""``kubeflow``: pods of a PyTorchJob whose operator sets only MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.

Newer operators, and Kubeflow Trainer, set PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and so on: those are torchrun's
variables, which count as flags and leave nothing to do here. Source: github.com/kubeflow/training-operator,
pkg/controller.v1/pytorch/envvar.go: RANK and WORLD_SIZE count pods there, and the pod of rank 0 is ``JOB-master-0``.

Such variables are also set by hand. So they are read only in a pod with the names of a PyTorchJob, by what its own
command has started: in a shell of ``kubectl exec`` a launch remains a job on its own machine.
"""

from __future__ import annotations

import logging

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, hook_of, is_of_the_container

logger = logging.getLogger(__name__)


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What the operator says about this pod; None for variables that others have set."""
    environ = variables.environ
    if "LOCAL_RANK" in environ or any(name.startswith("PET_") for name in environ):
        return None
    if not is_of_the_container():
        logger.debug("ignoring the PyTorchJob's variables (plug-in kubeflow): not started by its command")
        return None
    job = environ["HOSTNAME"].rpartition("-")[0].rpartition("-")[0]
    nodes = variables.needed_number("WORLD_SIZE", 1)
    return Facts(
        "the PyTorchJob",
        nodes=nodes,
        node_rank=variables.below(variables.needed_number("RANK"), nodes),
        hosts=lambda count: Fact((f"{job}-master-0",), "MASTER_ADDR"),  # the operator gives no other pod a name
        port=variables.needed_number("MASTER_PORT", 1),
        run_id=Fact(job, "HOSTNAME"),
    )


rdzv_resolve_request = hook_of("kubeflow", read)
