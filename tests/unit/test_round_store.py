"""What errors of a round's store mean: they are told by name, so that nobody has to import torch for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import api

from rdzv_launcher.run.agent.round_store import is_graceful_exit, is_lost, is_timeout
from rdzv_plugins import errors
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.torch_types.errors import as_torch


def raised(wait: Callable[[], object]) -> Exception:
    try:
        wait()
    except Exception as error:  # which one it is, is the question
        return error
    raise AssertionError("it has not failed")


@pytest.mark.parametrize("kind", ["TCPStore", "FileStore", "HashStore"])
def test_what_has_not_come_is_a_time_out(kind: str, tmp_path: Path) -> None:
    with StoreServer("127.0.0.1") as server:
        store = {
            "TCPStore": lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False),
            "FileStore": lambda: dist.FileStore(str(tmp_path / "store"), 1),
            "HashStore": dist.HashStore,
        }[kind]()
        error = raised(lambda: store.wait(["never"], timedelta(milliseconds=20)))
        assert is_timeout(error)
        assert not is_lost(error)


def test_a_server_that_goes_is_a_loss() -> None:
    with StoreServer("127.0.0.1") as server:
        store = dist.TCPStore("127.0.0.1", server.port, is_master=False)
        store.set("a", "b")
    error = raised(lambda: store.get("a"))
    assert is_lost(error)
    assert not is_timeout(error)


@pytest.mark.parametrize("error", [as_torch(errors.EndpointLost("it went")), ConnectionResetError()])
def test_other_losses(error: Exception) -> None:
    assert is_lost(error)
    assert not is_timeout(error)


def test_a_graceful_exit_is_known_by_its_name() -> None:
    assert is_graceful_exit(api.RendezvousGracefulExitError("done without"))
    assert not is_graceful_exit(api.RendezvousClosedError("closed"))
