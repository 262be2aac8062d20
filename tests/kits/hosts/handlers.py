"""Eight nodes in one process, a thread each, that form two rounds at each endpoint: ``handlers.py ENDPOINT...``.

Prints a line of JSON for each endpoint: the ``ranks`` of both rounds; what every node ``asked`` of the service, less
what the one that leads does for all; and the ``quickest`` answer in seconds.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rdzv_plugins.coordination import CoordinationBackend
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.endpoint_options import EndpointOptions, validate
from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.elastic.places.opening import open_places
from rdzv_plugins.interfaces import Request

NODES = 8


class Counted:
    """A session, or the service, that counts what is asked of it and takes the time of the answers."""

    def __init__(self, inner: Any, asked: collections.Counter[str], times: list[float]) -> None:
        self._inner, self._asked, self._times = inner, asked, times

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._counted(name, found) if name in ("create", "put", "delete", "list", "watch") else found

    def open_session(self, *args: Any, **options: Any) -> Any:
        self._asked["open_session"] += 1
        return Counted(self._inner.open_session(*args, **options), self._asked, self._times)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *args: Any, **options: Any) -> Any:
            of_the_leader = "guard" in options or first in ("", keys.LEADER, keys.MEMBERS, keys.NODES)
            if not of_the_leader:
                self._asked[name] += 1
            start = time.monotonic()
            try:
                return function(first, *args, **options)
            finally:
                self._times.append(time.monotonic() - start)

        return call


class Node(threading.Thread):
    def __init__(self, backend: CoordinationBackend, request: Request, together: threading.Barrier) -> None:
        super().__init__()
        self.asked: collections.Counter[str] = collections.Counter()
        self.times: list[float] = []
        self.ranks: list[int] = []
        self._together = together
        self._handler = ElasticHandler(Counted(backend, self.asked, self.times), request, request.options)

    def run(self) -> None:
        try:
            self.ranks.append(self._handler.next_rendezvous().rank)
            self._together.wait()
            while self.ranks[0] != 0 and not self._handler.must_rejoin():  # the first asks, the others hear of it
                time.sleep(0.01)
            self.ranks.append(self._handler.next_rendezvous().rank)
            self._together.wait()
        except BaseException:
            self._together.abort()
            raise
        finally:
            self._handler.shutdown()


def main() -> None:
    options = EndpointOptions(allow_same_host=True)
    for number, endpoint in enumerate(sys.argv[1:]):
        request = Request("parallel", f"run{number}", endpoint, NODES, NODES, 1, options=options)
        request = dataclasses.replace(request, target=validate(request))
        together = threading.Barrier(NODES)
        nodes = [Node(open_places(request, "parallel"), request, together) for _ in range(NODES)]
        for node in nodes:
            node.start()
        for node in nodes:
            node.join()
        report = {
            "ranks": [sorted(ranks) for ranks in zip(*(node.ranks for node in nodes), strict=True)],
            "asked": [node.asked for node in sorted(nodes, key=lambda node: node.ranks[0])],
            "quickest": min(itertools.chain.from_iterable(node.times for node in nodes)),
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
