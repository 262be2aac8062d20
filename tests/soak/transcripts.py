"""What processes print, each line with the monotonic clock's seconds in front of it, into a file of each."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from rdzv_plugins.testing.forks.signals import before_exec


class Transcripts:
    """Starts processes, and reads their pipes at once, so that none ever waits for us. Thread-safe."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._rests: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._new: list[tuple[int, IO[bytes]]] = []
        self._closing = False
        self._reader = threading.Thread(target=self._read, name="transcripts", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Read no more; for when all processes have ended."""
        self._closing = True
        os.write(self._woken, b"!")
        self._reader.join()
        for key in [key for key in self._selector.get_map().values() if key.fd != self._wake]:
            self._drop(key.fd, key.data)
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)

    def start(self, command: Sequence[str], path: Path, env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
        """It dies with this process; what it has started may not."""
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**env},
            cwd=cwd,
            preexec_fn=before_exec(),
        )
        assert process.stdout
        descriptor = os.dup(process.stdout.fileno())
        process.stdout.close()
        with self._lock:
            self._new.append((descriptor, path.open("ab", buffering=0)))
        os.write(self._woken, b"!")
        return process

    def _read(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.fd == self._wake:
                    os.read(self._wake, 100)
                    with self._lock:
                        new, self._new = self._new, []
                    for descriptor, file in new:
                        self._selector.register(descriptor, selectors.EVENT_READ, file)
                    continue
                self._copy(key.fd, key.data)

    def _copy(self, descriptor: int, file: IO[bytes]) -> None:
        data = os.read(descriptor, 1 << 16)
        if not data:
            self._drop(descriptor, file)
            return
        *lines, rest = (self._rests.get(descriptor, b"") + data).split(b"\n")
        self._rests[descriptor] = rest
        now = f"{time.monotonic():.3f} ".encode()
        file.write(b"".join(now + line + b"\n" for line in lines))

    def _drop(self, descriptor: int, file: IO[bytes]) -> None:
        self._selector.unregister(descriptor)
        self._rests.pop(descriptor, None)
        os.close(descriptor)
        file.close()


def said(transcript: Path) -> list[str]:
    """Its last lines, and the last of those that name something bad."""
    lines = transcript.read_text(errors="replace").splitlines()[-200:] if transcript.exists() else []
    return [*[line for line in lines if re.search(r"error|lost|Traceback", line)][-6:], "...", *lines[-4:]]
