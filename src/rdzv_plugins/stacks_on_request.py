"""A worker's stacks without a debugger's rights: it writes them itself, through ``faulthandler``, on a signal.

``rdzv stacks`` reads workers from outside (py-spy) if it may. If it may not (a container without CAP_SYS_PTRACE,
another user, Yama), it sends SIGRTMIN+9 to workers that have called ``register``, which happens when they import
``rdzv_plugins.worker``, or torch in a worker of rdzv-run. The handler is C code that needs no interpreter lock: it
answers even in a deadlock or an endless loop, and costs nothing until then. Linux only.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "RDZV_STACKS"
"""The variable in a worker's environment: the directory for what it writes, a comma, and its agent's process id.

The file is named after the process id of the writer, so if it exists, the signal would be understood.
"""
SIGNAL = int(getattr(signal, "SIGRTMIN", 0)) + 9
"""The signal that asks a worker for its stacks: not SIGUSR1 or SIGUSR2, which schedulers and scripts use."""

_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_registered = ""


def register() -> bool:
    """Write this process's stacks whenever it gets ``SIGNAL``. True if it will; raises nothing.

    Returns False outside rdzv-run, and if the signal is already in use. A forked child registers anew. May be repeated.
    """
    global _registered
    directory, _, agent = os.environ.get(VARIABLE, "").rpartition(",")
    if not directory or not hasattr(signal, "SIGRTMIN"):
        return False
    path = os.path.join(directory, str(os.getpid()))
    if path == _registered:
        return True
    try:
        if not _registered and signal.getsignal(SIGNAL) is not signal.SIG_DFL:
            return False  # somebody else's
        import faulthandler

        # stays open for good: the handler writes to its descriptor
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(SIGNAL, fd, all_threads=True, chain=False)
        if not _registered:
            os.register_at_fork(after_in_child=register)
        _registered = path
        _allow(int(agent))
    except (OSError, RuntimeError, ValueError, ImportError, AttributeError):  # the agent has gone, or the disk is full
        return False
    return True


def _allow(agent: int) -> None:
    """Let the agent, and what it starts, read this process even if Yama lets only ancestors do so."""
    try:
        with open(_SCOPE) as file:
            if file.read().strip() != "1":
                return
    except OSError:  # there is no Yama
        return
    from rdzv_plugins.system import prctl  # imports ctypes

    prctl.let_trace(agent)
