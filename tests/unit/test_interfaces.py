"""Our interfaces and torch's classes have the same methods: either side's objects can be given to the other."""

import inspect

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend as TorchBackend
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from rdzv_plugins import Backend, Failure, Outcome, RendezvousBackend, RendezvousHandler
from rdzv_plugins.assemble.border import checked
from rdzv_plugins.assemble.plugin_handler import AdaptedHandler
from rdzv_plugins.backends.static.handler import StaticHandler
from rdzv_plugins.dynamic.handler import FreshDynamicHandler
from rdzv_plugins.dynamic.state_backend import EnvelopeBackend
from rdzv_plugins.elastic.handler import ElasticHandler
from rdzv_plugins.host import PluginRecord
from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.torch_bridge.torchrun_handler import TorchrunHandler

OUR_HANDLERS = [StaticHandler, ElasticHandler, FreshDynamicHandler, AdaptedHandler, TorchrunHandler]
OF_TORCH = {
    RendezvousHandler: (api.RendezvousHandler, api.RendezvousHandler.__abstractmethods__ | {"use_agent_store"}),
    RendezvousBackend: (TorchBackend, TorchBackend.__abstractmethods__),
}
OPTIONAL = {name for name in vars(RendezvousHandler) if name[0] != "_"} - RendezvousHandler.__abstractmethods__
FAILURE = Failure(node_rank=0, host="node", global_rank=0, local_rank=0, pid=1, exit_code=3)


def parameters(cls, name):
    member = inspect.getattr_static(cls, name)
    return list(inspect.signature(member.fget if isinstance(member, property) else member).parameters)


def of_torch():
    store = HashStore()
    backend = C10dRendezvousBackend(store, "run")
    dynamic = DynamicRendezvousHandler.from_backend("run", store, backend, 1, 1, local_addr="127.0.0.1")
    return StaticTCPRendezvous("127.0.0.1", 29500, 0, 1, "run", timeout=1), dynamic, backend


def as_one_of_ours(created):
    record = PluginRecord("toy", "toy", "rdzv-toy", "1.0")
    return checked(created, Entry(Backend(name="toy", summary="a toy", create=lambda _: created), record))


def test_torchs_objects_are_accepted_each_as_one_of_ours():
    *handlers, backend = of_torch()
    assert [isinstance(as_one_of_ours(each), RendezvousHandler) for each in (*handlers, backend)] == [True, True, False]
    assert isinstance(as_one_of_ours(backend), RendezvousBackend)


def test_a_handler_of_torch_is_asked_what_torch_asks_and_knows_nothing_of_the_rest():
    _, dynamic, _ = of_torch()
    handler = as_one_of_ours(dynamic)
    told = [(handler.get_run_id(), handler.get_backend(), handler.use_agent_store, handler.num_nodes_waiting())]
    assert told == [("run", dynamic.get_backend(), dynamic.use_agent_store, 0)]
    assert not handler.is_closed()
    handler.set_closed()
    assert (handler.is_closed(), dynamic.is_closed()) == (True, True)
    assert (handler.holding, handler.questions, handler.first_failure(), handler.waits_for()) == (None, None, None, "")
    assert (handler.must_rejoin(), handler.peer_lost(), handler.check_by(list)) == (False, False, False)
    assert [*handler.working_peers(), *handler.lost_peers(), *handler.count_restart("note")] == []
    assert handler.worker_env() == {}
    told = (handler.note_failure(FAILURE), handler.note_leaving("it has to"), handler.leave(Outcome("done")))
    assert {*told, handler.raise_if_ended(), handler.note_done(), handler.stay(), handler.tell_events(print)} == {None}
    assert handler.shutdown()


@pytest.mark.parametrize(
    ("interface", "cls"),
    [(RendezvousHandler, cls) for cls in (RendezvousHandler, *OUR_HANDLERS)]
    + [(RendezvousBackend, cls) for cls in (RendezvousBackend, EnvelopeBackend)],
)
def test_methods_are_torchs_with_their_parameters(interface, cls):
    torchs, names = OF_TORCH[interface]
    assert {name: parameters(cls, name) for name in names} == {name: parameters(torchs, name) for name in names}


@pytest.mark.parametrize("cls", [StaticHandler, ElasticHandler, FreshDynamicHandler])
def test_our_handlers_keep_to_the_parameters_of_what_is_optional(cls):
    methods = [name for name in OPTIONAL if callable(vars(RendezvousHandler)[name])]
    assert {name: parameters(cls, name) for name in methods} == {
        name: parameters(RendezvousHandler, name) for name in methods
    }
