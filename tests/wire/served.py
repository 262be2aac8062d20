"""A store server, or a proxy, in a process of its own: its memory and its descriptors are its alone.

Its argument is JSON: ``limits``; of a server ``threads`` and ``host``; of a proxy ``root``, which is a port of this
machine, and ``proxy``, further arguments of ``StoreProxy``. It prints its port, then answers each line with a line of
JSON, until its input ends: ``stats``, or ``files N``, which sets the limit of open files. Log lines go to stderr.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.proxy import StoreProxy
from rdzv_plugins.kvstore.server import StoreLimits, StoreServer


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    limits = StoreLimits(**options["limits"])
    server: StoreServer | StoreProxy
    if root := options.get("root"):
        server = StoreProxy(Endpoint("127.0.0.1", root), limits=limits, on_lost=lost, **options.get("proxy", {}))
        port = server.listen()
    else:
        server = StoreServer(options.get("host", "127.0.0.1"), threads=options["threads"], limits=limits)
        port = server.port
    with server:
        print(json.dumps(port), flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            if command == "files":
                hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(arguments[0]), hard))
            print(json.dumps(server.stats()), flush=True)


def lost(reason: str) -> None:
    logging.getLogger("served").warning("lost: %s", reason)


if __name__ == "__main__":
    main()
