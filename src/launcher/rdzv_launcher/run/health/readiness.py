"""Whether the workers of this node work, as a yes or no and a sentence: what ``/readyz`` says."""

from __future__ import annotations

from rdzv_launcher.run.agent.decisions import Stage
from rdzv_launcher.run.workers.worker_group import WorkerGroup

_SAYS: dict[Stage, str] = {
    "stopping": "the workers of this node are being stopped",
    "asking": "the workers of this node have failed: the others are asked whether a node was lost",
    "counting": "the workers of this node have failed: whether there is a restart for the job is being asked",
    "delaying": "the workers of this node have failed, and are about to be restarted",
    "finding": "the workers of this node have failed, and no restart is left",
    "ended": "this node is about to end",
}


def readiness(stage: Stage, group: WorkerGroup | None, waits_for: str) -> tuple[bool, str]:
    """True if they work in a complete round, or have finished. ``waits_for``: what the rendezvous says of its wait."""
    if stage == "joining":
        return False, f"waits for other nodes: {waits_for}" if waits_for else "waits for other nodes"
    if stage in _SAYS or group is None:
        return False, _SAYS.get(stage, "this node has no workers: the job goes on, or is done, without it")
    where = f"node {group.group_rank} of {group.group_world_size}, workers: {group.local_world_size}"
    if stage == "working":
        return True, f"works: {where}"
    return True, f"done: {where}; waits for the others"
