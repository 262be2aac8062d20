"""Handlers of rendezvous, each with one fault."""

import dataclasses
import sys

from toy_registry import toy

from rdzv_plugins import Backend, Capability
from rdzv_plugins.backends import static
from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.runtime import SYSTEM
from rdzv_plugins.store import Prefixed


def backend(name, create):
    """``static``, but for its handlers."""
    return dataclasses.replace(static.rdzv_register_backends(), name=name, create=create)


@toy("handler-never-closed")
def never_closed(name):
    """A handler that was closed does not say so."""

    def create(request):
        handler = static.create(request)
        handler.set_closed = lambda: None
        return handler

    return backend(name, create)


@toy("launch-ends-well")
def ends_well(name):
    """A node that hears how the job ended ends with exit code 0, and one that is stopped says that it is done."""

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

        return Handler(request, static.node_rank(request), SYSTEM)

    return backend(name, create)


@toy("store-of-agents-stays")
def store_stays(name):
    """The agents get the same store in every round, and the workers' keys are among its own."""

    def create(request):
        from rdzv_plugins.backends.static.handler import StaticHandler

        class Handler(StaticHandler):
            def next_rendezvous(self):
                info = super().next_rendezvous()
                return dataclasses.replace(info, store=Prefixed("agents", self._control.client))

        return Handler(request, static.node_rank(request), SYSTEM)

    return backend(name, create)


@toy("store-of-torch")
def store_of_torch(name):
    """torch's own dynamic rendezvous as it is: it hands the workers' store of the last round out again."""

    def create(request):
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

        parameters = RendezvousParameters(
            "c10d", request.endpoint, request.run_id, request.min_nodes, request.max_nodes, "127.0.0.1"
        )
        held, store = create_backend(parameters)
        return create_handler(store, held, parameters)

    return Backend(
        name=name,
        summary="torch's own handler",
        create=create,
        capabilities=frozenset({Capability.ELASTIC}),
        options=DynamicSettings,
        validate=lambda request: parse_endpoint(request.endpoint, None),
    )
