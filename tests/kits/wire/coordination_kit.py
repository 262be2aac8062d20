"""A session with a coordination service as a process that can be killed, and what tests of the suite use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from kits.wire.processes import SCRIPTS, read_line, spawned
from kits.wire.wire_client import PATIENCE
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.testing.parts import LONG, Losses, Recorder, keys, keys_of, opened, stop

__all__ = ["LONG", "Losses", "Recorder", "client_of", "keys", "keys_of", "leave", "opened", "stop"]


@contextmanager
def client_of(
    endpoints: Sequence[Endpoint],
    key: str,
    ttl: float,
    *,
    kind: str = "native",
    run: str = "run",
    child: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
    **more: object,
) -> Iterator[subprocess.Popen[str]]:
    """A process with a session that has written ``key`` as ephemeral. ``more``: arguments of its backend."""
    options = {"kind": kind, "endpoints": [(each.host, each.port) for each in endpoints], "run": run, "more": more}
    options |= {"key": key, "ttl": ttl, "child": child}
    command = [sys.executable, SCRIPTS / "session_client.py", json.dumps(options)]
    with spawned([command], [dict(environment)]) as (process,):
        line = read_line(process)
        assert line == "ready\n", line + (process.communicate(timeout=PATIENCE)[0] if process.stdout else "")
        yield process


def leave(process: subprocess.Popen[str]) -> None:
    """Let a client close its session and end."""
    assert process.stdin
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
