"""The guardian as its agent sees it: started before the first workers, and again should somebody end it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys

from rdzv_launcher.run.fence.guardian import BOOT
from rdzv_launcher.run.roots import ROOTS

logger = logging.getLogger(__name__)

_END_S = 5.0
_NEEDED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables without which some builds of Python do not even start."""


class GuardianProcess:
    """One at a time. Its user holds a lock; ``tell`` may be called without it."""

    def __init__(self, mark: str, page: int) -> None:
        self._mark, self._page = mark, page
        self._process: subprocess.Popen[bytes] | None = None
        self._told: list[str] = []  # since it would have to know after a restart, too
        self._failed = False

    def watch_over(self) -> None:
        """There is one from now on. Says so if it cannot be started."""
        if self._process is None and not self._failed:
            self._start()

    def check(self) -> None:
        """Start another one if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            logger.warning("the guardian of this agent was ended (%s): starting another", self._process.returncode)
            self._let_go()
            self._start()

    def tell(self, line: str) -> None:
        """Tell the guardian one line, which it reads as ``Guardian`` says."""
        if line == "stopped":
            self._told = [each for each in self._told if not each.startswith("worker ")]
        else:
            self._told.append(line)
        self._write(line)

    def dismiss(self) -> None:
        """Tell the guardian that it is not needed any longer, as nothing is left, and wait for its end."""
        if self._process is None:
            return
        self._write("dismissed")
        process = self._let_go()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:  # somebody has stopped it
            process.kill()
            process.wait()

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", "-E", "-c", BOOT, ROOTS, str(os.getpid()), self._mark, str(self._page)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # who reads ours to its end is not to wait for it
                env={name: value for name, value in os.environ.items() if name in _NEEDED},  # without the mark
                cwd="/",
                pass_fds=[self._page],
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._failed = True
            logger.warning("no guardian could be started (%s): workers may outlive this agent if it is killed", error)
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        for line in self._told:
            self._write(line)

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended: the next one is told all
                self._process.stdin.write(f"{line}\n".encode(errors="surrogateescape"))

    def _let_go(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        process, self._process = self._process, None
        if process.stdin is not None:
            process.stdin.close()
        return process
