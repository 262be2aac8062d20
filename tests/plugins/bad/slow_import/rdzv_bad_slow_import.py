import time

from rdzv_plugins import Backend, hookimpl

time.sleep(0.7)


def create(request):
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    store = HashStore()
    backend = C10dRendezvousBackend(store, request.run_id)
    return DynamicRendezvousHandler.from_backend(
        request.run_id, store, backend, request.min_nodes, request.max_nodes, local_addr="127.0.0.1"
    )


@hookimpl
def rdzv_register_backends():
    return Backend(name="slow_import", summary="slow to import", create=create)
