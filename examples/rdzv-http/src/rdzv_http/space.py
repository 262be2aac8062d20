"""The keys and the sessions of one run, in memory. All methods are for one thread at a time."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections import deque
from dataclasses import dataclass
from typing import Any

MOST_CHANGES = 10_000
"""So many are remembered for those who watch."""


class Gone(Exception):
    """No such session, or not any more."""


class Forgotten(Exception):
    """Somebody asks for changes from before what is remembered."""


@dataclass
class Lease:
    """A session. ``number`` and ``answer``: of its last write, which may be asked for once more."""

    ttl: float
    ends: float
    number: int = 0
    answer: Any = None


class Space:
    """``keys``: name -> (value, revision, the session that it goes with); values are text."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, int, str]] = {}
        self.sessions: dict[str, Lease] = {}
        self.changes: deque[tuple[str, str | None, int]] = deque(maxlen=MOST_CHANGES)
        self.revision = 0

    def lease(self, session: str) -> Lease:
        if session not in self.sessions:
            raise Gone
        return self.sessions[session]

    def open(self, session: str, ttl: float) -> None:
        self.sessions.setdefault(session, Lease(ttl, time.monotonic() + ttl))

    def keep_alive(self, session: str) -> None:
        lease = self.lease(session)
        lease.ends = time.monotonic() + lease.ttl

    def end(self, session: str) -> None:
        self.lease(session)
        del self.sessions[session]
        for key in [key for key, held in self.keys.items() if held[2] == session]:
            self._change(key, None)

    def write(self, session: str, number: int, what: dict[str, Any]) -> Any:
        """Does each number once, and answers the same again."""
        lease = self.lease(session)
        if number > lease.number:
            lease.number, lease.answer = number, self._write(session, what)
        return lease.answer

    def _write(self, session: str, what: dict[str, Any]) -> Any:
        absent, guard = what.get("absent"), what.get("guard")
        put = [(str(key), b64encode(b64decode(value)).decode()) for key, value in what.get("put", ())]  # or no answer
        if absent in self.keys:
            return {"done": False, "held": self.keys[absent][:2]}
        if guard and self.keys.get(guard[0], ("", 0))[1] != guard[1]:
            return {"done": False}
        for key in what.get("delete", ()):
            if key in self.keys:
                self._change(key, None)
        for key, value in put:
            self._change(key, value, session if what.get("ephemeral") else "")
        return {"done": True, "revision": self.revision}

    def _change(self, key: str, value: str | None, owner: str = "") -> None:
        self.revision += 1
        self.changes.append((key, value, self.revision))
        if value is None:
            del self.keys[key]
        else:
            self.keys[key] = value, self.revision, owner

    def find(self, prefix: str) -> list[tuple[str, str, int]]:
        found = [(key, held[0], held[1]) for key, held in self.keys.items() if key.startswith(prefix)]
        return sorted(found, key=lambda each: each[2])

    def since(self, prefix: str, after: int) -> list[tuple[str, str | None, int]]:
        if after < self.revision - len(self.changes):
            raise Forgotten
        return [each for each in self.changes if each[2] > after and each[0].startswith(prefix)]
