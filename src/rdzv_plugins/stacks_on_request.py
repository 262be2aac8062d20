"""A worker's stacks without a debugger's rights: it writes them itself, by ``faulthandler``, when it gets a signal.

``rdzv stacks`` reads workers from outside (py-spy) where it may. Where it may not (a container without
CAP_SYS_PTRACE, another user, Yama), it sends SIGRTMIN+9 to those that have called ``register``: importing
``rdzv_plugins.worker`` does, and importing torch in a worker of rdzv-run. The handler is C code that needs no
interpreter lock: it answers from within a deadlock and an endless loop, and costs nothing until then. Linux only.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "RDZV_STACKS"
"""The variable in a worker's environment: the directory for what it writes, a comma, and its agent's process id. The
file has the process id of the writer as its name, so one that is there says that the signal would be understood."""
SIGNAL = int(getattr(signal, "SIGRTMIN", 0)) + 9
"""Not SIGUSR1 or SIGUSR2, which schedulers and scripts use."""

_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_registered = ""


def register() -> bool:
    """Write this process's stacks whenever it gets ``SIGNAL``. True if it will; raises nothing.

    False outside of rdzv-run, and where the signal is in use already. A forked child registers anew. May be repeated.
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

        # it stays open for good: the handler writes to its descriptor
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(SIGNAL, fd, all_threads=True, chain=False)
        if not _registered:
            os.register_at_fork(after_in_child=register)
        _registered = path
        _allow(int(agent))
    except (OSError, RuntimeError, ValueError, ImportError, AttributeError):  # the agent has gone; a full disk
        return False
    return True


def _allow(agent: int) -> None:
    """Let the agent, and what it starts, read this process where Yama lets only ancestors do so."""
    try:
        with open(_SCOPE) as file:
            if file.read().strip() != "1":
                return
    except OSError:  # there is no Yama
        return
    from rdzv_plugins.linux import prctl  # imports ctypes

    prctl.let_trace(agent)
