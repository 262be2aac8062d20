"""An agent's directory for temporary files, removed when the agent ends, or by the next one if the agent was killed.

A live agent holds a lock on a file in it, which the kernel releases however the agent ends. Not every file system has
locks: without one, what a killed agent leaves behind stays. The supervisor uses this module to remove the directory,
too.
"""

from __future__ import annotations

import fcntl
import os

PREFIX = "rdzv-run-"
_LOCK = "lock"
_INDEX = "index.jsonl"
"""The file that says which of the workers' logs is whose."""


class RunDirectory:
    """A new directory; what earlier agents of this user left behind is removed. A context manager."""

    def __init__(self) -> None:
        import tempfile  # slow

        parent = tempfile.gettempdir()
        _tidy(parent)
        try:
            self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        except OSError as error:
            raise _limit_too_low(
                f"cannot create a directory for temporary files in {parent}: {error.strerror}",
                remedy="Free some space there, or name another directory: TMPDIR=DIRECTORY.",
            ) from None
        self._lock = -1
        self._hold()

    def ensure(self) -> None:
        """Make it again if it is gone: cleaners of temporary files remove what has not changed for days.

        Raises ``LimitTooLow`` if it cannot be made, or is somebody else's by now.
        """
        try:
            os.mkdir(self.path, 0o700)
            self._hold()
        except FileExistsError:
            if os.lstat(self.path).st_uid != os.getuid():
                raise _limit_too_low(f"{self.path}, the directory of this agent, now belongs to another user") from None
        except OSError as error:
            raise _limit_too_low(
                f"{self.path}, the directory of this agent, is gone and cannot be recreated: {error.strerror}",
                remedy="Check that its parent directory still exists.",
            ) from None

    def _hold(self) -> None:
        """Open it to this user alone, and lock it, if that is possible here."""
        new, lock = os.path.join(self.path, f"{_LOCK}.new"), os.path.join(self.path, _LOCK)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        _try(lambda path: os.chmod(path, 0o700), self.path)  # whatever the umask has taken away
        try:
            self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # it gets its name only once it is locked: one that is not locked belongs to nobody
            os.rename(new, lock)
        except OSError as error:
            import logging  # the supervisor does without it

            logging.getLogger(__name__).info(
                "cannot lock %s (%s): it stays behind if this agent is killed", self.path, error.strerror
            )

    @property
    def logs(self) -> str:
        """Where log files go without --log-dir. The workers' logs belong to the user: removing this keeps them."""
        return os.path.join(self.path, "logs")

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        remove(self.path)
        if self._lock >= 0:
            os.close(self._lock)


def _limit_too_low(message: str, remedy: str = "") -> Exception:
    from rdzv_plugins.errors import LimitTooLow  # the supervisor does without it

    return LimitTooLow(message, remedy=remedy)


def remove(path: str) -> None:
    """Remove everything in it but workers' logs and their index, and the directory itself if there are no logs.

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
    """Remove what agents of this user that have ended left behind."""
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
        except OSError:  # another program's; just being created; or only logs are left of it
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
