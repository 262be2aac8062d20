"""Fault: a node that hears how the job ended ends with exit code 0, and one that is stopped says that it is done."""

import dataclasses
import sys

from rdzv_plugins import hookimpl
from rdzv_plugins.backends import static


def create(request):
    from rdzv_plugins.backends.static.handler import StaticHandler

    class Handler(StaticHandler):
        def raise_if_ended(self):
            if self._problem is not None:
                sys.exit(0)

        def note_leaving(self, reason):
            pass

        def leave(self, outcome):
            super().leave(dataclasses.replace(outcome, end="done") if outcome.end == "lost" else outcome)

    return Handler(request, static.node_rank(request))


@hookimpl
def rdzv_register_backends():
    return dataclasses.replace(static.rdzv_register_backends(), name="launch-ends-well", create=create)
