"""A store server, or a proxy, in a process of its own: its memory and its descriptors are its alone.

Its argument is JSON: see ``ServerProcess``. It answers each line with a line of JSON, until its input ends: ``port``,
``stats``, or of a server that may pause ``resume N``. Log lines go to stderr.
"""

from __future__ import annotations

import json
import logging
import sys

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.limits import StoreLimits
from rdzv_plugins.kvstore.native.server import StoreProxy, StoreServer


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    limits, warn = StoreLimits(**options["limits"]), logging.getLogger("served").warning
    server: StoreServer | StoreProxy
    if options["root"]:
        server = StoreProxy(Endpoint("127.0.0.1", options["root"]), limits=limits, **options["proxy"])
        port = server.listen()
    else:
        server = StoreServer("127.0.0.1", threads=options["threads"], limits=limits)
        port = server.port
        if options["pause"]:
            server.first.pause_after(options["pause"], lambda number: warn("paused %d", number))
    with server:
        for line in sys.stdin:
            match line.split():
                case ["port"]:
                    answer: object = port
                case ["resume", number]:
                    assert isinstance(server, StoreServer)
                    answer = server.first.resume(int(number))
                case _:
                    answer = server.stats()
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
