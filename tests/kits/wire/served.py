"""A store server, or a proxy, in a process of its own: its memory and its descriptors are its alone.

Its argument is JSON: ``limits``; of a server ``threads``, and after how many seconds it is to ``pause``; of a
proxy ``root``, which is a port of this machine, and ``proxy``, further arguments of ``StoreProxy``. It prints its port,
then answers each line with a line of JSON, until its input ends: ``stats``, or of a server that may pause ``resume N``.
Log lines go to stderr.
"""

from __future__ import annotations

import json
import logging
import sys

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.proxy import StoreProxy
from rdzv_plugins.kvstore.native.server import StoreLimits, StoreServer


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    limits = StoreLimits(**options["limits"])
    server: StoreServer | StoreProxy
    if root := options.get("root"):
        server = StoreProxy(Endpoint("127.0.0.1", root), limits=limits, on_lost=lost, **options.get("proxy", {}))
        port = server.listen()
    else:
        server = StoreServer("127.0.0.1", threads=options["threads"], limits=limits)
        port = server.port
        if options.get("pause"):
            server.first.pause_after(
                options["pause"], lambda number: logging.getLogger("served").warning("paused %d", number)
            )
    with server:
        print(json.dumps(port), flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            if command == "resume":
                assert isinstance(server, StoreServer)
                print(json.dumps(server.first.resume(int(arguments[0]))), flush=True)
            else:
                print(json.dumps(server.stats()), flush=True)


def lost(reason: str) -> None:
    logging.getLogger("served").warning("lost: %s", reason)


if __name__ == "__main__":
    main()
