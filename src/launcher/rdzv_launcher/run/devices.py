"""--nproc-per-node: a number, or what the machine has. For ``npu`` torch_npu is asked, for the rest torch."""

from __future__ import annotations

from rdzv_plugins.errors import MissingDependency, UsageError


def local_world_size(text: str) -> int:
    """The number of workers on this node. Raises ``UsageError``, or ``MissingDependency`` for npu without torch_npu."""
    if text.isdecimal() or text.lstrip("-").isdecimal():
        if int(text) < 1:
            raise UsageError(f"--nproc-per-node={text}: at least one worker is needed")
        return int(text)
    if text == "npu":
        return _npu_count()
    from torch.distributed.run import determine_local_world_size

    try:
        return int(determine_local_world_size(text))
    except ValueError as error:
        raise UsageError(
            f"--nproc-per-node={text}: {error}", remedy="It takes auto, cpu, gpu, npu, xpu or a number."
        ) from error


def accelerators() -> tuple[int, str]:
    """The number of accelerators that torch finds on this machine, and their kind."""
    import torch

    if not torch.accelerator.is_available():
        return 0, ""
    return int(torch.accelerator.device_count()), str(torch.accelerator.current_accelerator())


def _npu_count() -> int:
    """The number of Ascend devices on this machine. Untested here: no such device was at hand."""
    import torch

    try:
        import torch_npu  # noqa: F401  (registers torch.npu)
    except ImportError as error:
        version = torch.__version__.partition("+")[0]
        raise MissingDependency(
            f"--nproc-per-node=npu needs torch_npu, which cannot be imported: {error}",
            remedy=f"Install the CANN toolkit, then: pip install torch_npu (the release for torch {version}). "
            "Or give a number.",
        ) from error
    count = int(torch.npu.device_count()) if torch.npu.is_available() else 0
    if count < 1:
        raise UsageError("--nproc-per-node=npu: torch_npu sees no NPU", remedy="Check the driver with npu-smi info.")
    return count
