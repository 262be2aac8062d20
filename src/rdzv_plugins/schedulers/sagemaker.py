"""``sagemaker``: training jobs of Amazon SageMaker, from the variables that its training toolkit sets for the script.

Source: github.com/aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md. The list of hosts has the same order on all
of them. A shell in the container has none of these variables. SageMaker HyperPod clusters run Slurm or Kubernetes, and
have the variables of those.
"""

from __future__ import annotations

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, hook_of


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What SageMaker says about this container."""
    hosts = _hosts(variables)
    here = variables.needed_text("SM_CURRENT_HOST")
    if here.value not in hosts:
        raise variables.refused(f"{here} is not in SM_HOSTS={variables.environ['SM_HOSTS']}")
    gpus = variables.number("SM_NUM_GPUS")
    return Facts(
        "SageMaker",
        nodes=Fact(len(hosts), "SM_HOSTS"),
        node_rank=Fact(hosts.index(here.value), "SM_CURRENT_HOST in SM_HOSTS"),
        hosts=lambda count: Fact(tuple(hosts[:count]), "SM_HOSTS"),
        run_id=_job(variables),
        run_id_lasts=True,
        workers=gpus if gpus is not None and gpus.value else None,
    )


def _hosts(variables: Variables) -> list[str]:
    import json  # here, because every launch loads this module

    text = variables.needed_text("SM_HOSTS")
    try:
        hosts = json.loads(text.value)
    except ValueError as error:
        raise variables.wrong(text.source, f"is not JSON: {error}") from error
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise variables.wrong(text.source, "is not a list of host names")
    return hosts


def _job(variables: Variables) -> Fact[str] | None:
    import json

    name = variables.text("TRAINING_JOB_NAME")
    if name is not None:
        return name
    described = variables.text("SM_TRAINING_ENV")
    try:
        found = json.loads(described.value).get("job_name") if described is not None else None
    except (ValueError, AttributeError) as error:
        raise variables.wrong("SM_TRAINING_ENV", f"is not a JSON object: {error}") from error
    return Fact(found, "SM_TRAINING_ENV") if isinstance(found, str) and found else None


rdzv_resolve_request = hook_of("sagemaker", read)
