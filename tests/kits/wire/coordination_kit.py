"""Sessions with a coordination service, as a process that can be killed, and what all ours promise beyond the contract.

The contract is tested by the theme ``backend`` of ``rdzv_plugins.testing``, in ``tests/conformance``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from kits.wire.attack_kit import expect_no_more_files, open_files, read_line
from kits.wire.processes import SCRIPTS, spawned
from kits.wire.wire_client import PATIENCE
from rdzv_plugins.coordination import CoordinationBackend, Event, Session
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


def check_that_sessions_share_a_thread(backend: CoordinationBackend, one: Session) -> None:
    """300 sessions of a process cost it no thread, and leave no descriptor behind."""
    recorder, seen = Recorder(), Recorder()
    one.watch("node/", seen, timeout=PATIENCE)
    threads, files = set(threading.enumerate()), open_files()
    sessions = [opened(backend) for _ in range(300)]
    assert set(threading.enumerate()) <= threads
    for number, session in enumerate(sessions):
        assert session.create(f"node/{number}", b"", ephemeral=True, timeout=PATIENCE)[0]
        session.watch("round", recorder, timeout=PATIENCE)
    one.put({"round": b"1"}, timeout=PATIENCE)
    assert set(recorder.take(300)) == {("round", b"1")}
    assert len(recorder.threads) == 1
    for session in sessions:
        session.close()
    gone = seen.until(lambda events: len(events) >= 600)
    assert {each.key for each in gone if each.value is None} == {f"node/{number}" for number in range(300)}
    expect_no_more_files(files)


def check_that_an_end_waits_for_the_call(session: Session, how: str, change: Callable[[], object]) -> None:
    """``cancel`` and ``close`` return when the call that runs has; ``change`` is another node's, of any key."""
    running, go, history = threading.Event(), threading.Event(), []

    def call(events: Sequence[Event]) -> None:
        if running.is_set():
            return  # a later event: the end may not have begun
        history.append("begins")
        running.set()
        assert go.wait(PATIENCE)
        history.append("ends")

    watch = session.watch("", call, timeout=PATIENCE)
    change()
    assert running.wait(PATIENCE)

    def end() -> None:
        watch.cancel() if how == "cancel" else session.close()
        history.append("ended")

    thread = threading.Thread(target=end)
    thread.start()
    thread.join(0.2)  # it should not come to its end before the call has
    go.set()
    thread.join(PATIENCE)
    assert history == ["begins", "ends", "ended"]
