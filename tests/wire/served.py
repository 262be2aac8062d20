"""A store server in a process of its own, for the tests of attacks: its memory and its descriptors are its alone.

Its argument is JSON: ``limits``, ``threads``, ``host``. It prints its port, then answers each line with a line of JSON,
until its input ends: ``stats``, or ``files N``, which sets the limit of open files. Log lines go to stderr.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

from rdzv_plugins.kvstore.server import StoreLimits, StoreServer


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    limits = StoreLimits(**options["limits"])
    with StoreServer(options.get("host", "127.0.0.1"), threads=options["threads"], limits=limits) as server:
        print(json.dumps(server.port), flush=True)
        for line in sys.stdin:
            command, *arguments = line.split()
            if command == "files":
                hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                resource.setrlimit(resource.RLIMIT_NOFILE, (int(arguments[0]), hard))
            print(json.dumps(server.stats()), flush=True)


if __name__ == "__main__":
    main()
