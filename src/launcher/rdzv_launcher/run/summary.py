"""The last thing on the screen after a failure: who failed first, how, and the last lines that it wrote."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from rdzv_plugins.interfaces import Failure

_HINTS = {
    signal.SIGKILL: "Often the kernel's out-of-memory killer: see dmesg, or the memory limit of the job.",
    signal.SIGSEGV: "A crash in native code: PYTHONFAULTHANDLER=1 shows the line of Python that led to it.",
    signal.SIGBUS: "Often a full /dev/shm: give the container more shared memory.",
}


def describe_exit(exit_code: int) -> str:
    """How a process ended: ``exit code 3`` or ``signal 9 (SIGKILL)``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "unknown"
    return f"signal {-exit_code} ({name})"


def describe(failure: Failure) -> str:
    """One line: rank, node, and how it ended, or where it is in a job that hangs."""
    how = failure.hang or f"ended with {describe_exit(failure.exit_code)}"
    if failure.global_rank < 0:  # what its workers do is not known
        return f"node {failure.node_rank} on {failure.host} (agent's pid {failure.pid}) {how}"
    return (
        f"rank {failure.global_rank} (node {failure.node_rank} on {failure.host}, local rank {failure.local_rank}, "
        f"pid {failure.pid}) {how}"
    )


def failure_summary(
    first: Failure, here: Sequence[Failure], *, node_rank: int, restarts: str, log_dir: str = "", why: str = ""
) -> str:
    """The whole text. ``here`` are the failures of this node's workers.

    ``why``: why the job has ended although restarts were left; empty if none were left.
    """
    lines = ["the job failed.", f"  first failure: {describe(first)}"]
    if first.hang:
        lines = ["the job failed: it hung.", f"  who is different: {describe(first)}"]
    if why:
        lines.insert(1, f"  {why}")
    usual = _HINTS.get(signal.Signals(-first.exit_code)) if -first.exit_code in set(signal.Signals) else None
    hint = first.cause or usual
    if hint:
        lines.append(f"  {hint}")
    if first.stderr:
        lines.append("  the last lines of its stderr:")
        lines += [f"  | {line}" for line in first.stderr]
    elif not first.hang:
        lines.append("  nothing of its stderr is known.")
    others = sorted((each.global_rank, each.exit_code) for each in here if each.global_rank != first.global_rank)
    if others:
        ends = ", ".join(f"rank {rank}: {describe_exit(code)}" for rank, code in others)
        lines.append(f"  after it, on this node ({node_rank}): {ends}")
    lines.append(f"  {restarts}")
    if log_dir:
        lines.append(f"  logs: {log_dir}")
    return "\n".join(lines)
