"""One session as a process, to be killed or stopped. Its argument is JSON: see ``main``.

It writes an ephemeral key and says "ready"; when its input ends, it closes the session and ends.
Says "lost: ..." when the session is lost.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.endpoints import Endpoint


def backend_of(options: dict[str, Any]) -> CoordinationBackend:
    endpoints = [Endpoint(*each) for each in options["endpoints"]]
    if options["kind"] == "native":
        from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination

        return NativeCoordination(endpoints[0], "run", name="parallel", who="the store")
    from rdzv_plugins.backends.etcd.coordination import EtcdCoordination

    return EtcdCoordination(endpoints, "run")


def main() -> None:
    options = json.loads(sys.argv[1])
    backend = backend_of(options)
    session = backend.open_session(
        options["ttl"], on_lost=lambda error: print(f"lost: {error}", flush=True), timeout=30
    )
    session.put({options["key"]: b"here"}, ephemeral=True, timeout=30)
    print("ready", flush=True)
    sys.stdin.read()
    backend.close()


if __name__ == "__main__":
    main()
