"""Our protocols and torch's classes have the same methods: either side's objects can be given to the other."""

import inspect

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import api
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend as TorchBackend
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from rdzv_plugins import Failure, JobAware, RendezvousBackend, RendezvousHandler, Request
from rdzv_plugins.assemble.hosted_handler import HostedHandler
from rdzv_plugins.backends.static.handler import StaticHandler
from rdzv_plugins.dynamic.envelope import EnvelopeBackend
from rdzv_plugins.dynamic.handler import FreshDynamicHandler

HANDLER_METHODS = sorted(api.RendezvousHandler.__abstractmethods__ | {"use_agent_store"})
BACKEND_METHODS = sorted(TorchBackend.__abstractmethods__)
OUR_HANDLERS = [HostedHandler, StaticHandler, FreshDynamicHandler]


def parameters(cls, name):
    member = inspect.getattr_static(cls, name)
    return list(inspect.signature(member.fget if isinstance(member, property) else member).parameters)


def torch_dynamic_handler():
    store = HashStore()
    return DynamicRendezvousHandler.from_backend(
        "run", store, C10dRendezvousBackend(store, "run"), 1, 1, local_addr="127.0.0.1"
    )


def test_torchs_static_handler_is_one_of_ours():
    torchs = StaticTCPRendezvous("127.0.0.1", 29500, 0, 1, "run", timeout=1)
    assert isinstance(torchs, RendezvousHandler)


def test_torchs_dynamic_handler_is_one_of_ours():
    assert isinstance(torch_dynamic_handler(), RendezvousHandler)


def test_torchs_c10d_backend_is_one_of_ours():
    assert isinstance(C10dRendezvousBackend(HashStore(), "run"), RendezvousBackend)


def test_handler_is_not_taken_for_a_state_backend_nor_the_other_way_round():
    assert not isinstance(torch_dynamic_handler(), RendezvousBackend)
    assert not isinstance(C10dRendezvousBackend(HashStore(), "run"), RendezvousHandler)


def test_torchs_handlers_do_not_pretend_to_tell_how_it_ended():
    assert not isinstance(torch_dynamic_handler(), JobAware)


@pytest.mark.parametrize("name", HANDLER_METHODS)
@pytest.mark.parametrize("cls", [RendezvousHandler, *OUR_HANDLERS])
def test_handler_has_torchs_method_with_its_parameters(cls, name):
    assert parameters(cls, name) == parameters(api.RendezvousHandler, name)


@pytest.mark.parametrize("name", BACKEND_METHODS)
@pytest.mark.parametrize("cls", [RendezvousBackend, EnvelopeBackend])
def test_state_backend_has_torchs_method_with_its_parameters(cls, name):
    assert parameters(cls, name) == parameters(TorchBackend, name)


def test_protocols_ask_for_nothing_that_torch_does_not_have():
    ours = {name for name in vars(RendezvousHandler) if not name.startswith("_")}
    assert ours == set(HANDLER_METHODS)
    assert {name for name in vars(RendezvousBackend) if not name.startswith("_")} == set(BACKEND_METHODS)


@pytest.mark.parametrize("cls", OUR_HANDLERS)
def test_our_handlers_tell_how_it_ended(cls):
    assert [name for name in vars(JobAware) if not name.startswith("_") and not hasattr(cls, name)] == []


def test_request_is_frozen():
    request = Request("static", "run", "", 1, 1, 1)
    with pytest.raises(AttributeError):
        request.backend = "c10d"
    with pytest.raises(TypeError):
        request.conf["key"] = "value"


@pytest.mark.parametrize(("exit_code", "shells"), [(0, 0), (3, 3), (-9, 137)])
def test_exit_code_of_a_failure_is_what_a_shell_reports(exit_code, shells):
    failure = Failure(node_rank=0, host="node", global_rank=0, local_rank=0, pid=1, exit_code=exit_code)
    assert failure.process_exit_code == shells
