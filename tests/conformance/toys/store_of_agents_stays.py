"""Fault: the agents get the same store in every round, and the workers' keys are among its own."""

import dataclasses

from rdzv_plugins import hookimpl
from rdzv_plugins.backends import static
from rdzv_plugins.store import Prefixed


def create(request):
    from rdzv_plugins.backends.static.handler import StaticHandler

    class Handler(StaticHandler):
        def next_rendezvous(self):
            info = super().next_rendezvous()
            return dataclasses.replace(info, store=Prefixed("agents", self._control.client))

    return Handler(request, static.node_rank(request))


@hookimpl
def rdzv_register_backends():
    return dataclasses.replace(static.rdzv_register_backends(), name="store-of-agents-stays", create=create)
