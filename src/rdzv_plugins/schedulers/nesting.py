"""Which launcher has started this process if the variables of several are present: the innermost one.

With ``mpirun`` in a Slurm job, or Slurm within Kubernetes, a process inherits the variables of all of them. Those of an
outer launcher describe what has started the inner one, not this process. So they are not used even if the plug-in of
the inner one is switched off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Environ = Mapping[str, str]

_RESERVED_STEPS = 0xFFFFFFF0
"""Numbers from here on are Slurm's own: the batch script, the shell of salloc (``use_interactive_step``)."""
_WITHIN = "TORCHELASTIC_RUN_ID"
"""Set in a worker of torchrun or rdzv-run: what that launches is its own matter."""


def _openmpi(environ: Environ) -> bool:
    """Whether it is mpirun's. srun and flux with their PMIx plug-ins set PMIX_NAMESPACE, too, in their own form."""
    return "OMPI_COMM_WORLD_RANK" in environ or environ.get("PMIX_NAMESPACE", "").startswith(("prterun-", "prte-"))


def _slurm(environ: Environ) -> bool:
    """Whether it is srun's, and not the shell of an allocation: only srun's tasks are in a numbered step."""
    step = environ.get("SLURM_STEP_ID", "")
    return (
        bool(step)
        and "SLURM_PROCID" in environ
        and not (step.isdecimal() and len(step) < 12 and int(step) >= _RESERVED_STEPS)
    )


def _pbs(environ: Environ) -> bool:
    """Whether it is a task of PBS, not the job's script or the shell of ``qsub -I``: those are task 1 of node 0."""
    if "PBS_JOBID" not in environ or "PBS_NODENUM" not in environ:
        return False
    return (environ["PBS_NODENUM"], environ.get("PBS_TASKNUM", "1")) != ("0", "1")


def _pytorchjob(environ: Environ) -> bool:
    """Whether it is a PyTorchJob's pod. People set such variables, too; a pod of a PyTorchJob also has its names."""
    if not all(each in environ for each in ("KUBERNETES_SERVICE_HOST", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        return False
    named = re.fullmatch(r"(.+)-(?:master|worker)-[0-9]+", environ.get("HOSTNAME", ""))
    return named is not None and environ.get("MASTER_ADDR") in (f"{named[1]}-master-0", "localhost")


def _has(*names: str) -> Callable[[Environ], bool]:
    return lambda environ: all(name in environ for name in names)


_MARKS: tuple[tuple[str, Callable[[Environ], bool]], ...] = (
    ("openmpi", _openmpi),
    ("flux", _has("FLUX_TASK_RANK")),
    ("slurm", _slurm),
    ("pbs", _pbs),
    ("sagemaker", _has("SM_HOSTS", "SM_CURRENT_HOST")),
    ("torchx", _has("TORCHX_JOB_ID")),
    ("kubeflow", _pytorchjob),
    ("indexed-job", _has("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")),
)
"""Maps each plug-in to what only processes started by its launcher have; inner launchers precede those around them."""


def launchers(environ: Environ) -> list[str]:
    """The plug-ins of all launchers whose variables are present, the innermost first."""
    return [] if _WITHIN in environ else [name for name, started in _MARKS if started(environ)]
