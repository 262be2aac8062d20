"""An agent's directory for temporary files: it goes with the agent, and that of one that was killed with the next.

Who lives holds a lock on a file in it, which the kernel lets go however the agent ends. The keeper removes it
with this file, too.
"""

from __future__ import annotations

import fcntl
import os

PREFIX = "rdzv-run-"
_LOCK = "lock"
_INDEX = "index.jsonl"
"""Which file of the workers' logs is whose."""


class RunDirectory:
    """A new one; what earlier agents of this user have left behind is removed. A context manager."""

    def __init__(self) -> None:
        import tempfile  # slow

        _tidy(tempfile.gettempdir())
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = os.open(os.path.join(self.path, f"{_LOCK}.new"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # under its name only when it is locked: one that is not locked is nobody's
        os.rename(os.path.join(self.path, f"{_LOCK}.new"), os.path.join(self.path, _LOCK))

    @property
    def logs(self) -> str:
        """Where torch logs without --log-dir. The workers' logs belong to the user, and stay."""
        return os.path.join(self.path, "logs")

    @property
    def pipes(self) -> str:
        """The directory of the pipes for the workers' standard error."""
        return os.path.join(self.path, "pipes")

    @property
    def log_pipes(self) -> str:
        """The directory of the pipes of log files that the agent writes."""
        return os.path.join(self.path, "log-pipes")

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        remove(self.path)
        os.close(self._lock)


def remove(path: str) -> None:
    """All in it but logs of workers and what is said of them, and the directory if there are none.

    Does nothing where it is not possible.
    """
    for directory, names, files in os.walk(path, topdown=False):
        for name in names:
            entry = os.path.join(directory, name)
            _try(os.unlink if os.path.islink(entry) else os.rmdir, entry)
        has_logs = any(os.path.isdir(os.path.join(directory, name)) for name in names)
        for name in files:
            if not name.endswith(".log") and not (name == _INDEX and has_logs):
                _try(os.unlink, os.path.join(directory, name))
    _try(os.rmdir, path)


def _tidy(parent: str) -> None:
    """Remove what was left by agents of this user that have ended."""
    try:
        names = [name for name in os.listdir(parent) if name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        path = os.path.join(parent, name)
        try:
            if os.path.islink(path) or os.stat(path).st_uid != os.getuid():
                continue
            lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another program's; it is just being made; only logs are left of it
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        except OSError:  # its agent lives
            pass
        finally:
            os.close(lock)


def _try(act, path: str) -> None:  # type: ignore[no-untyped-def]
    try:
        act(path)
    except OSError:
        pass
