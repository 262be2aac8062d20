"""What errors of a round's store mean: they are told by name, so that nobody has to import torch for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import api

from rdzv_launcher.run.agent.round_store import appear, is_graceful_exit, is_lost, is_timeout
from rdzv_plugins import errors
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.runtime import Runtime
from rdzv_plugins.torch_types import as_torch


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
        assert is_timeout(error, over=True)
        assert is_timeout(error) == (kind != "FileStore"), "its error says nothing: the time has to"
        assert not is_lost(error)


def test_a_server_that_goes_is_a_loss() -> None:
    with StoreServer("127.0.0.1") as server:
        store = dist.TCPStore("127.0.0.1", server.port, is_master=False)
        store.set("a", "b")
    error = raised(lambda: store.get("a"))
    assert is_lost(error)
    assert not is_timeout(error)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (as_torch(errors.EndpointLost("it went")), True),
        (ConnectionResetError(), True),
        *(
            (error, False)
            for error in (NotImplementedError("no"), RecursionError("deep"), ValueError("bad"), OSError("no"))
        ),
    ],
)
def test_what_is_no_time_out_however_long_it_took(error: Exception, lost: bool) -> None:
    assert is_lost(error) == lost
    assert not is_timeout(error, over=True)


class Failing:
    """A store whose waits fail at once."""

    def __init__(self, error: Exception) -> None:
        self.error, self.waits = error, 0

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.waits += 1
        raise self.error


def test_a_wait_that_ends_early_takes_its_time_nevertheless() -> None:
    """A loop over it would spin."""
    slept: list[float] = []
    runtime = Runtime()
    runtime.monotonic = lambda: sum(slept)  # type: ignore[assignment, method-assign]
    runtime.sleep = slept.append  # type: ignore[assignment, method-assign]
    store = Failing(errors.StoreTimeout("it is over"))
    assert not appear(store, ["never"], 30.0, runtime)  # type: ignore[arg-type]
    assert (sum(slept), store.waits) == (30.0, 1)
    with pytest.raises(RuntimeError, match="the server objects"):  # an error is none
        appear(Failing(RuntimeError("the server objects")), ["never"], 30.0, runtime)  # type: ignore[arg-type]


def test_a_graceful_exit_is_known_by_its_name() -> None:
    assert is_graceful_exit(api.RendezvousGracefulExitError("done without"))
    assert not is_graceful_exit(api.RendezvousClosedError("closed"))
