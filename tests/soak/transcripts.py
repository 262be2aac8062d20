"""What processes print, each line with the monotonic clock's seconds in front of it; and what workers write down."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rdzv_plugins.testing.processes import before_exec


def start(command: Sequence[str], path: Path, env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """It dies with this process; what it has started may not, and never waits for us."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**env},
        cwd=cwd,
        preexec_fn=before_exec(),
    )
    threading.Thread(target=_copy, args=(process.stdout, path.open("ab", buffering=0)), daemon=True).start()
    return process


def _copy(stream: IO[bytes], file: IO[bytes]) -> None:
    with stream, file:
        for line in stream:
            file.write(f"{time.monotonic():.3f} ".encode() + line)


def said(transcript: Path) -> list[str]:
    """Its last lines, and the last of those that name something bad."""
    lines = transcript.read_text(errors="replace").splitlines()[-200:] if transcript.exists() else []
    return [*[line for line in lines if re.search(r"error|lost|Traceback", line)][-6:], "...", *lines[-4:]]


class Records:
    """All files of a directory, each read on from where it was left."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[dict[str, Any]]:
        """What was written since the last call."""
        for path in sorted(self._directory.glob("*.jsonl")):
            offset = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = offset + len(whole)
            yield from map(json.loads, whole.splitlines())
