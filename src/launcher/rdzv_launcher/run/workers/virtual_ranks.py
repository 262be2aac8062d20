"""--virtual-local-rank: each worker sees one device, which is number 0 for it, and has local rank 0."""

from __future__ import annotations

import glob
from collections.abc import Mapping

from rdzv_plugins.errors import UsageError

_CUDA = "CUDA_VISIBLE_DEVICES"
"""ROCm's build of torch uses this variable, too."""
_HIP = "HIP_VISIBLE_DEVICES"
"""If it is set, ROCm goes by this one instead."""
_ASCEND = "ASCEND_RT_VISIBLE_DEVICES"


def devices_of(local_rank: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that show a worker its one device, out of those that are visible here.

    Raises ``UsageError`` if there are too few.
    """
    if environ.get(_HIP):
        gpu = _nth(_HIP, local_rank, environ)
        found = {_CUDA: gpu, _HIP: gpu}
    else:
        found = {_CUDA: _nth(_CUDA, local_rank, environ)}
    npu = environ.get(_ASCEND) or glob.glob("/dev/davinci[0-9]*")
    return {**found, _ASCEND: _nth(_ASCEND, local_rank, environ)} if npu else found


def _nth(variable: str, local_rank: int, environ: Mapping[str, str]) -> str:
    if variable not in environ:
        return str(local_rank)
    devices = environ[variable].split(",")
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank: there is no device for local rank {local_rank}: {variable}={environ[variable]}",
            remedy=f"Name as many devices there as workers are to run on this node, or unset {variable}.",
        )
    return devices[local_rank].strip()
