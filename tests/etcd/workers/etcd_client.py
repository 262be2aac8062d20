"""One session as a process. Its argument is JSON: endpoints, ttl, mode. It ends when its input does.

``lasting``: it writes a key that is not ephemeral, says "ready" and does nothing more.
``forks``: a child of it tries everything with the session that it has inherited, and ends in the ordinary way; then it
says what the child met with, and whether its own session still works.
"""

from __future__ import annotations

import json
import os
import sys

from rdzv_plugins.backends.etcd.coordination import EtcdCoordination
from rdzv_plugins.coordination import Session
from rdzv_plugins.endpoints import Endpoint


def try_all(session: Session) -> list[str]:
    """What each call came to."""
    met = []
    for call in (
        lambda: session.create("child's", b"", timeout=5),
        lambda: session.put({"child's": b""}, timeout=5),
        lambda: session.delete(["mine"], timeout=5),
        lambda: session.list("", timeout=5),
        lambda: session.watch("", print, timeout=5),
        session.close,
    ):
        try:
            call()
            met.append("done")
        except Exception as error:
            met.append(f"{type(error).__name__}: {error}")
    return met


def in_a_child(session: Session, backend: EtcdCoordination) -> list[str]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(try_all(session)).encode())
        backend.close()
        sys.exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        met: list[str] = json.load(answer)
    os.wait()
    return met


def main() -> None:
    options = json.loads(sys.argv[1])
    backend = EtcdCoordination([Endpoint(*each) for each in options["endpoints"]], "run")
    session = backend.open_session(options["ttl"], on_lost=lambda error: print(f"lost: {error}"), timeout=30)
    session.put({"mine": b""}, ephemeral=options["mode"] == "forks", timeout=30)
    print("ready", flush=True)
    if options["mode"] == "forks":
        print(json.dumps(in_a_child(session, backend)), flush=True)
        session.put({"parent's": b""}, timeout=30)
        print(json.dumps([each.key for each in session.list("", timeout=30)[0]]), flush=True)
    sys.stdin.read()
    backend.close()


if __name__ == "__main__":
    main()
