"""The workers' records, as they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
