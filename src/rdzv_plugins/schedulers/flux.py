"""``flux``: ``flux run --nodes=4 --tasks-per-node=1 rdzv-run train.py``.

Source: https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7/flux-environment.html, *JOB
ENVIRONMENT*; the shell of ``flux alloc`` has none of these variables. They do not name hosts: ``flux hostlist`` does
(flux-hostlist(1)).
"""

from __future__ import annotations

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, hook_of

_HOSTS = ("flux", "hostlist", "--expand", "local")
_TIMEOUT_S = 60


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What Flux says about this task."""
    nodes, tasks = variables.needed_number("FLUX_JOB_NNODES", 1), variables.needed_number("FLUX_JOB_SIZE", 1)
    rank = variables.below(variables.needed_number("FLUX_TASK_RANK"), tasks)
    if tasks.value != nodes.value:
        raise variables.refused(
            f"Flux started this command {tasks.value} times ({tasks}) on {nodes.value} nodes ({nodes}), but it "
            "starts the workers itself",
            "Start it once per node (flux run --tasks-per-node=1 rdzv-run ...) and give --nproc-per-node.",
        )
    job = variables.needed_text("FLUX_JOB_ID")
    return Facts(
        "flux run",
        nodes=nodes,
        node_rank=rank,
        hosts=lambda count: _hosts(variables, count),
        run_id=Fact(f"flux-{job.value.replace('ƒ', 'f')}", job.source),
        workers=_gpus(variables),
    )


def _gpus(variables: Variables) -> Fact[int] | None:
    """The number of GPUs that Flux has bound to the one task of this node."""
    devices = variables.text("CUDA_VISIBLE_DEVICES")
    listed = [each for each in devices.value.split(",") if each.strip() not in ("", "-1")] if devices else []
    return Fact(len(listed), "CUDA_VISIBLE_DEVICES") if listed else None


def _hosts(variables: Variables, count: int) -> Fact[tuple[str, ...]]:
    import subprocess  # here, because every launch loads this module

    try:
        done = subprocess.run(_HOSTS, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        hosts = tuple(done.stdout.split())
        why = "" if hosts else "no output"
    except subprocess.CalledProcessError as error:
        why = str(error.stderr).strip() or str(error)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        raise variables.refused(f"`{' '.join(_HOSTS)}` did not print the hosts of this job: {why}")
    return Fact(hosts[:count], "`flux hostlist`")


rdzv_resolve_request = hook_of("flux", read)
