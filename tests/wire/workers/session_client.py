"""One session as a process, to be killed or stopped. Its argument is JSON: see ``main``.

It writes an ephemeral key and says "ready"; ends when its input does. Says "lost: ..." when the session is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.sessions import NativeCoordination


def main() -> None:
    options = json.loads(sys.argv[1])
    endpoint = Endpoint(options["host"], options["port"])
    backend = NativeCoordination(endpoint, options["run"], name="parallel", who="the store")
    session = backend.open_session(
        options["ttl"], on_lost=lambda error: print(f"lost: {error}", flush=True), timeout=30
    )
    session.put({options["key"]: b"here"}, ephemeral=True, timeout=30)
    if options["child"] == "fork":
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
    elif options["child"] == "spawn":
        subprocess.Popen(["cat"], close_fds=False)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
