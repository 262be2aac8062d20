"""Fault: torch's own dynamic rendezvous as it is: it hands the workers' store of the last round out again."""

from rdzv_plugins import Backend, Capability, hookimpl
from rdzv_plugins.dynamic.options import DynamicSettings
from rdzv_plugins.endpoints import parse_endpoint


def create(request):
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    parameters = RendezvousParameters(
        "c10d", request.endpoint, request.run_id, request.min_nodes, request.max_nodes, "127.0.0.1"
    )
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


@hookimpl
def rdzv_register_backends():
    return Backend(
        name="store-of-torch",
        summary="torch's own handler",
        create=create,
        capabilities=frozenset({Capability.ELASTIC}),
        options=DynamicSettings,
        validate=lambda request: parse_endpoint(request.endpoint, None),
    )
