"""Our protocols and torch's classes have the same methods: either side's objects can be given to the other."""

import inspect

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend as TorchBackend
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from rdzv_plugins import JobAware, RendezvousBackend, RendezvousHandler, Request
from rdzv_plugins.assemble.hosted_handler import HostedHandler
from rdzv_plugins.backends.static.handler import StaticHandler
from rdzv_plugins.dynamic.envelope import EnvelopeBackend
from rdzv_plugins.dynamic.handler import FreshDynamicHandler

OUR_HANDLERS = [HostedHandler, StaticHandler, FreshDynamicHandler]
OF_TORCH = {
    RendezvousHandler: (api.RendezvousHandler, api.RendezvousHandler.__abstractmethods__ | {"use_agent_store"}),
    RendezvousBackend: (TorchBackend, TorchBackend.__abstractmethods__),
}


def parameters(cls, name):
    member = inspect.getattr_static(cls, name)
    return list(inspect.signature(member.fget if isinstance(member, property) else member).parameters)


def public(cls):
    return {name for name in vars(cls) if not name.startswith("_")}


def test_torchs_objects_are_of_our_protocols_and_of_one_alone():
    store = HashStore()
    backend = C10dRendezvousBackend(store, "run")
    dynamic = DynamicRendezvousHandler.from_backend("run", store, backend, 1, 1, local_addr="127.0.0.1")
    static = StaticTCPRendezvous("127.0.0.1", 29500, 0, 1, "run", timeout=1)
    protocols = (RendezvousHandler, RendezvousBackend, JobAware)
    assert [[isinstance(each, protocol) for protocol in protocols] for each in (static, dynamic, backend)] == [
        [True, False, False],
        [True, False, False],
        [False, True, False],
    ]


@pytest.mark.parametrize(
    ("protocol", "cls"),
    [(RendezvousHandler, cls) for cls in (RendezvousHandler, *OUR_HANDLERS)]
    + [(RendezvousBackend, cls) for cls in (RendezvousBackend, EnvelopeBackend)],
)
def test_methods_are_torchs_with_their_parameters_and_nothing_else_is_asked_for(protocol, cls):
    torchs, names = OF_TORCH[protocol]
    assert public(protocol) == names
    assert {name: parameters(cls, name) for name in names} == {name: parameters(torchs, name) for name in names}


@pytest.mark.parametrize("cls", OUR_HANDLERS)
def test_our_handlers_tell_how_it_ended(cls):
    assert [name for name in public(JobAware) if not hasattr(cls, name)] == []


def test_request_is_frozen():
    request = Request("static", "run", "", 1, 1, 1)
    with pytest.raises(AttributeError):
        request.backend = "c10d"
    with pytest.raises(TypeError):
        request.conf["key"] = "value"
