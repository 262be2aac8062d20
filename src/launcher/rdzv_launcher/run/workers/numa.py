"""--numa-binding: torch puts numactl in front of a worker's command. torch is imported only if the flag is given.

Untested on a machine with several NUMA nodes and GPUs: what is bound to what is torch's choice.
"""

from __future__ import annotations

import inspect
import logging
import shutil

from rdzv_plugins.errors import MissingDependency, UsageError


def require_numactl(mode: str) -> None:
    """Raises ``MissingDependency`` if a ``mode`` is given and there is no numactl."""
    if mode and shutil.which("numactl") is None:
        raise MissingDependency(
            f"--numa-binding={mode} starts the workers with numactl, and there is no such program",
            remedy="Install it (on Debian and Ubuntu: apt-get install numactl), or leave out --numa-binding.",
        )


def bound(command: tuple[str, ...], local_rank: int, mode: str) -> tuple[str, ...]:
    """``command`` bound to the processors next to the worker's GPU; unchanged without a ``mode``.

    Raises ``MissingDependency`` without numactl, and ``UsageError`` if torch finds nothing to bind to.
    """
    if not mode:
        return command
    require_numactl(mode)
    from torch.numa import binding

    logger = logging.getLogger(binding.__name__)
    before, logger.disabled = logger.disabled, True  # otherwise a traceback, for what is said below
    try:
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        wrap = binding._maybe_wrap_command_args_with_numa_binding
        index = "gpu_index" if "gpu_index" in inspect.signature(wrap).parameters else "device_index"  # from 2.14 on
        wrapped = wrap(command, **{index: local_rank}, numa_options=options)
    except Exception as error:
        raise UsageError(
            f"--numa-binding={mode}: torch cannot bind local rank {local_rank}: {error}",
            remedy="It needs a GPU for each worker, and what the system says of its place. Or leave it out.",
        ) from error
    finally:
        logger.disabled = before
    return tuple(wrapped)
