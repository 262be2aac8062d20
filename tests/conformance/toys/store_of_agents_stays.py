"""Fault: the agents get the same store in every round, and the workers' keys are among its own."""

import dataclasses

from rdzv_plugins import hookimpl
from rdzv_plugins.backends import static


def create(request):
    from torch.distributed import PrefixStore, TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousInfo

    from rdzv_plugins.backends.static.handler import StaticHandler

    class Handler(StaticHandler):
        def next_rendezvous(self):
            info = super().next_rendezvous()
            return RendezvousInfo(
                PrefixStore("agents", self._control), info.rank, info.world_size, info.bootstrap_store_info
            )

    assert TCPStore
    return Handler(request, static.node_rank(request))


@hookimpl
def rdzv_register_backends():
    return dataclasses.replace(static.rdzv_register_backends(), name="store-of-agents-stays", create=create)
