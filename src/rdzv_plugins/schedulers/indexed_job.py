"""``indexed-job``: the pods of an Indexed Job of Kubernetes, and of a JobSet with one Job.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/job, *Completion mode*: JOB_COMPLETION_INDEX, and host
names ``JOB-INDEX``, which peers can resolve if the pods have a headless Service, as a JobSet makes one
(https://jobset.sigs.k8s.io/docs/concepts). Nothing tells a pod how many there are, and many Indexed Jobs are not a
single training run, so nothing is read unless ``--nnodes`` (or PET_NNODES) asks for several nodes.
"""

from __future__ import annotations

import socket

from rdzv_plugins.schedulers.facts import Fact, Facts, Variables, hook_of

_HOSTS = "/etc/hosts"


def read(variables: Variables, nodes_given: bool) -> Facts | None:
    """What Kubernetes says about this pod, if the number of nodes is given."""
    if not nodes_given:
        return None
    index = variables.needed_number("JOB_COMPLETION_INDEX")
    host = variables.environ.get("HOSTNAME") or socket.gethostname()
    stem = host.removesuffix(f"-{index.value}")
    named = stem != host
    return Facts(
        "the Job",
        node_rank=index,
        hosts=lambda count: _hosts(host, stem, count) if named else None,
        run_id=Fact(stem, "the name of the pod") if named else None,
        replaced=True,
    )


def _hosts(host: str, stem: str, count: int) -> Fact[tuple[str, ...]] | None:
    """The hosts, in the pod's domain, which kubelet writes to /etc/hosts if there is one.

    Without it, no peer can resolve them.
    """
    try:
        with open(_HOSTS) as lines:
            names = [name for line in lines for name in line.partition("#")[0].split()[1:]]
    except OSError:
        return None
    domain = next((name.partition(".")[2] for name in names if name.startswith(f"{host}.")), "")
    hosts = tuple(f"{stem}-{index}.{domain}" for index in range(count))
    return Fact(hosts, f"the name of the pod in {_HOSTS}") if domain else None


rdzv_resolve_request = hook_of("indexed-job", read)
