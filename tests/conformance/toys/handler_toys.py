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


def backend(name, **methods):
    """``static``, but for these methods of its handlers."""

    def create(request):
        from rdzv_plugins.backends.static.handler import StaticHandler

        return type("Handler", (StaticHandler,), methods)(request, static.node_rank(request), SYSTEM)

    return dataclasses.replace(static.rdzv_register_backends(), name=name, create=create)


@toy("handler-never-closed")
def never_closed(name):
    """A handler that was closed does not say so."""
    return backend(name, set_closed=lambda handler: None)


@toy("launch-ends-well")
def ends_well(name):
    """A node that hears how the job ended ends with exit code 0, and one that is stopped says that it is done."""

    def raise_if_ended(handler):
        if handler._problem is not None:
            sys.exit(0)

    def leave(handler, outcome):
        done = dataclasses.replace(outcome, end="done") if outcome.end == "lost" else outcome
        super(type(handler), handler).leave(done)

    return backend(name, raise_if_ended=raise_if_ended, note_leaving=lambda handler, reason: None, leave=leave)


@toy("store-of-agents-stays")
def store_stays(name):
    """The agents get the same store in every round, and the workers' keys are among its own."""

    def next_rendezvous(handler):
        info = super(type(handler), handler).next_rendezvous()
        return dataclasses.replace(info, store=Prefixed("agents", handler._control.client))

    return backend(name, next_rendezvous=next_rendezvous)


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
