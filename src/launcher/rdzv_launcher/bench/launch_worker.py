"""A worker of ``rdzv bench launch``. It prints one line and waits for the end of its standard input.

The input comes from the agent, and the agent's from the benchmark, so the agent is alive while it is looked at. Without
an argument the worker does not import torch, and what shows is the launcher's own time. With ``collective`` it joins
the gloo group, and its line comes after the first all_reduce.
"""

import os
import sys

LINE = b"worker started\n"


def collective() -> None:
    """Take part in the first collective of all workers."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    if sys.argv[1:] == ["collective"]:
        collective()
    os.write(1, LINE)  # print() under python -u writes the line end separately, and workers share this pipe
    sys.stdin.buffer.read()
    if "torch" in sys.modules:
        sys.modules["torch.distributed"].destroy_process_group()
