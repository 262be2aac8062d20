"""Fault: a node that hears how the job ended elsewhere ends by itself, says nothing, and with exit code 0."""

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

    return Handler(request, static.node_rank(request))


@hookimpl
def rdzv_register_backends():
    return dataclasses.replace(static.rdzv_register_backends(), name="launch-ends-well", create=create)
