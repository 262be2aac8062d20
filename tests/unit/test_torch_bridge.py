"""What torch passes on when it meets our entry points, and what becomes of it."""

from importlib.metadata import entry_points

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousParameters, rendezvous_handler_registry

from rdzv_plugins.errors import UnknownBackend
from rdzv_plugins.torch_bridge import bridge


def parameters(backend="rdzv-plugins.static", **conf):
    return RendezvousParameters(backend, "h:1", "run", 2, 4, local_addr="10.0.0.1", **conf)


@pytest.fixture(autouse=True)
def no_node_rank(monkeypatch):
    monkeypatch.delenv("PET_NODE_RANK", raising=False)


@pytest.mark.parametrize("name", ["rdzv-plugins", "rdzv-plugins.static", "rdzv-plugins.c10d"])
def test_torch_has_registered_every_backend(name):
    import torch.distributed.elastic.rendezvous.registry  # noqa: F401  (registers torch's own too)

    assert rendezvous_handler_registry._registry[name] is bridge.create


def test_torchs_own_backends_are_still_torchs():
    assert rendezvous_handler_registry._registry["c10d"] is not bridge.create


def test_entry_point_has_a_name_that_torch_does_not_use():
    (entry,) = [e for e in entry_points(group="torchrun.handlers") if e.value.startswith("rdzv_plugins.")]
    assert entry.name == bridge.PREFIX


def test_request_has_what_torch_passes_on():
    request = bridge.request_from(parameters(key="value"))
    assert (request.backend, request.endpoint, request.run_id) == ("rdzv-plugins.static", "h:1", "run")
    assert (request.min_nodes, request.max_nodes, request.local_addr) == (2, 4, "10.0.0.1")
    assert dict(request.conf) == {"key": "value"}


def test_timeout_that_torch_adds_to_every_job_is_not_taken_for_the_users():
    assert "timeout" not in bridge.request_from(parameters(timeout=900)).conf


@pytest.mark.parametrize("timeout", ["900", "30"])
def test_timeout_that_the_user_gave_is_kept(timeout):
    assert bridge.request_from(parameters(timeout=timeout)).conf["timeout"] == timeout


def test_node_rank_comes_from_the_variable(monkeypatch):
    monkeypatch.setenv("PET_NODE_RANK", "1")
    assert bridge.request_from(parameters()).node_rank == 1


def test_bare_prefix_is_refused_with_the_form():
    with pytest.raises(UnknownBackend) as caught:
        bridge.create(parameters("rdzv-plugins"))
    assert "--rdzv-backend=rdzv-plugins.NAME" in caught.value.remedy
