"""What a worker of --run-path runs: the script, whose exception torch records in the worker's error file.

A program of its own: an interpreter is given this file, which may import nothing before ``sys.path`` is the script's.
"""

import sys

BARRIER = "RDZV_LOCAL_EXIT_BARRIER"
"""The variable with the file of the ``LocalExitBarrier``; the script does not see it."""


class LocalExitBarrier:
    """Has the workers of one node end together: who is done waits for those that are still at work, as in torch.

    Otherwise the first to end would break the connections of a process group that a script has left open, and gloo
    aborts whoever is still in it. Each worker holds a lock on a byte of one file, which the kernel releases when the
    process ends, however it ends; its children do not have the lock. So the wait is for living workers alone, takes no
    longer than they do, and asks nobody. Where files cannot be locked nobody waits.
    """

    def __init__(self, path: str) -> None:
        """This process is at work. ``path`` is the same for all workers of a node; empty: nobody waits."""
        import fcntl
        import os

        self._lock, self._pid = fcntl.lockf, os.getpid()
        self._file = -1
        if path:
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._lock(self._file, fcntl.LOCK_EX, 1, self._pid)
            except OSError:
                self._file = -1

    def wait(self) -> None:
        """This process is done: wait until no other is at work. Signals are handled meanwhile."""
        import fcntl

        if self._file >= 0:
            try:
                self._lock(self._file, fcntl.LOCK_UN, 1, self._pid)
                self._lock(self._file, fcntl.LOCK_SH)
                self._lock(self._file, fcntl.LOCK_UN)
            except OSError:
                pass


def main() -> None:
    """Run the script named by the first argument as ``__main__``, with the rest as its arguments."""
    script, *arguments = sys.argv[1:]
    safe = getattr(sys.flags, "safe_path", False)  # python -P puts no directory there
    if not safe:
        del sys.path[0]
    import os
    import runpy

    if not safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    sys.argv = [script, *arguments]
    barrier = LocalExitBarrier(os.environ.pop(BARRIER, ""))
    from torch.distributed.elastic.multiprocessing.errors import record

    record(runpy.run_path)(script, run_name="__main__")
    barrier.wait()


if __name__ == "__main__":
    main()
