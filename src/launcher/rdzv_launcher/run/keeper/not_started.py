"""Why a worker could not be started, in words that say what to do."""

from __future__ import annotations

import errno
import os

from rdzv_launcher.run.keeper.messages import Start
from rdzv_plugins.errors import WorkerNotStarted

_PLACES = {"stdout": "--log-dir, --redirects", "stderr": "--log-dir, --redirects"}


def not_started(worker: Start, what: str, number: int) -> WorkerNotStarted:
    """The error for a worker: ``what`` failed (fork, exec, stdout, stderr, value) with the errno ``number``."""
    program, why = worker.command[0], os.strerror(number)
    who = f"the worker with local rank {worker.local_rank} could not be started: "
    if what == "value":
        return WorkerNotStarted(
            f"{who}its arguments or its environment contain a NUL character, or a name with '='",
            remedy="Look at the arguments of the script, and at what plug-ins add to the environment.",
        )
    if what in _PLACES and number not in (errno.EMFILE, errno.ENFILE):
        return WorkerNotStarted(
            f"{who}{getattr(worker, what)}, the file for its {what}, cannot be opened ({why})",
            remedy=f"Choose a directory that can be written ({_PLACES[what]}), with room on it.",
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return WorkerNotStarted(f"{who}{why}", remedy="Allow more open files: ulimit -n.")
    if what == "fork" or number in (errno.EAGAIN, errno.ENOMEM):
        return WorkerNotStarted(
            f"{who}the system allows no further process ({why})",
            remedy="Allow more processes (ulimit -u, TasksMax= of a systemd unit, pids of the container), free memory, "
            "or start fewer workers: --nproc-per-node.",
        )
    if number == errno.E2BIG:
        size = sum(map(len, worker.command)) + sum(len(k) + len(v) + 2 for k, v in worker.environment.items())
        return WorkerNotStarted(
            f"{who}its arguments and its environment are too long for the system ({size} characters; {why})",
            remedy="One string may have 128 KiB, all together a quarter of the stack's limit (ulimit -s). Put what is "
            "long into a file.",
        )
    remedies = {
        errno.ENOENT: "Check the path and PATH of the workers; of a script also the interpreter after its #!.",
        errno.EACCES: "Make it executable: chmod +x. A directory cannot be run, nor what lies on a file system that "
        "is mounted noexec.",
        errno.ENOEXEC: "A script needs a first line that says its interpreter, as #!/bin/sh.",
    }
    return WorkerNotStarted(f"{who}{program}: {why}", remedy=remedies.get(number, ""))
