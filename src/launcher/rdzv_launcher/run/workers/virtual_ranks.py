"""--virtual-local-rank: each worker sees one device, which is number 0 for it, and has local rank 0."""

from __future__ import annotations

from collections.abc import Mapping

from rdzv_plugins.errors import UsageError

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""ROCm's build of torch uses this variable, too."""


def device_of(local_rank: int, environ: Mapping[str, str]) -> str:
    """The one device of a worker, out of those that are visible here. Raises ``UsageError`` if there are too few."""
    if VARIABLE not in environ:
        return str(local_rank)
    devices = environ[VARIABLE].split(",")
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank: there is no device for local rank {local_rank}: {VARIABLE}={environ[VARIABLE]}",
            remedy=f"Name as many devices there as workers are to run on this node, or unset {VARIABLE}.",
        )
    return devices[local_rank].strip()
