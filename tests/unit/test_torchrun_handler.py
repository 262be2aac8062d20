"""What torch passes on when it meets our entry points, and what becomes of it."""

import logging
import os
import signal
import time
from contextlib import nullcontext, suppress
from datetime import timedelta

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.utils.store import barrier

from rdzv_plugins import torchrun as bridge
from rdzv_plugins.background_queue import unqueue_logging
from rdzv_plugins.errors import RunIdMissing, UnknownBackend
from rdzv_plugins.interfaces import Request
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.rendezvous import Rendezvous
from rdzv_plugins.torchrun.torchrun_handler import TorchrunHandler


def parameters(backend="rdzv-plugins.static", **conf):
    return RendezvousParameters(backend, "h:1", "run", 2, 4, local_addr="10.0.0.1", **conf)


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """The bridge queues what the package logs in the process that it is called in, and chooses what is shown."""
    monkeypatch.delenv("PET_NODE_RANK", raising=False)
    logger = logging.getLogger("rdzv_plugins")
    level, handlers, root = logger.level, list(logger.handlers), logging.root.level
    yield
    unqueue_logging()
    logger.setLevel(level)
    logger.handlers[:] = handlers
    logging.root.setLevel(root)


@pytest.mark.parametrize(
    ("given", "root", "own", "expected"),
    [
        (None, logging.WARNING, logging.NOTSET, logging.INFO),
        ("ERROR", logging.WARNING, logging.NOTSET, logging.ERROR),
        (None, logging.ERROR, logging.NOTSET, logging.NOTSET),
        (None, logging.WARNING, logging.ERROR, logging.ERROR),
    ],
)
def test_reports_are_shown_unless_somebody_has_chosen_otherwise(given, root, own, expected, monkeypatch):
    """Under torchrun nobody does: then there is a handler, too, for what Python would not show."""
    logger = logging.getLogger("rdzv_plugins")
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if given:
        monkeypatch.setenv("LOGLEVEL", given)
    logging.root.setLevel(root)
    logger.setLevel(own)
    logger.handlers[:] = []
    with suppress(UnknownBackend):
        bridge.create(parameters(bridge.PREFIX))
    unqueue_logging()
    assert logger.level == expected
    assert len(logger.handlers) == 1


def test_request_has_what_torch_passes_on(monkeypatch):
    request = bridge.request_from(parameters(key="value", timeout="900"))
    assert (request.backend, request.endpoint, request.run_id) == ("rdzv-plugins.static", "h:1", "run")
    assert (request.min_nodes, request.max_nodes, request.local_addr) == (2, 4, "10.0.0.1")
    assert dict(request.conf) == {"key": "value", "timeout": "900"}
    assert "timeout" not in bridge.request_from(parameters(timeout=900)).conf, "torch's own, added to every job"
    monkeypatch.setenv("PET_NODE_RANK", "1")
    assert bridge.request_from(parameters()).node_rank == 1


def test_default_run_id_counts_as_not_chosen():
    """torch does not say whether it was: where others meet too it is refused."""
    assert bridge.request_from(parameters()).is_named
    nameless = parameters("rdzv-plugins.etcd")
    nameless.run_id = "none"
    assert not bridge.request_from(nameless).is_named
    with pytest.raises(RunIdMissing, match="h:1"):
        bridge.create(nameless)


class Left:
    """What a handler is told at the end."""

    def __init__(self, stay=lambda: None):
        self.said = []
        self._stay = stay

    def next_rendezvous(self):
        return RendezvousInfo(HashStore(), 1, 2, None)

    def note_done(self):
        self.said.append("note_done")

    def stay(self):
        self._stay()
        self.said.append("stay")

    def leave(self, outcome):
        self.said.append(outcome.end)
        self.outcome = outcome

    def shutdown(self):
        return True


def of_torchrun(left):
    return TorchrunHandler("rdzv-plugins.toy", Rendezvous(left, PluginHost([]), Request("toy", "run", "h:1", 2, 2, 0)))


def ends(handler, error=None):
    """As torch's agent ends: in a ``finally``, with an error under way or without one."""
    try:
        if error is not None:
            raise error
    finally:
        handler.shutdown()


def failed(code):
    return ChildFailedError("train.py", {3: ProcessFailure(1, 812, code, "<N/A>")})


@pytest.mark.parametrize(
    ("joined", "error", "said", "reason"),
    [
        (True, None, ["stay", "done"], ""),
        (True, failed(7), ["failed"], "rank 3 (local rank 1, pid 812) ended with exit code 7"),
        (True, failed(-9), ["failed"], "rank 3 (local rank 1, pid 812) ended with signal 9"),
        (False, None, ["lost"], "before a round was complete"),
        (False, ValueError("a fault"), ["lost"], "a fault"),
    ],
    ids=["done", "exit code", "signal", "never in a round", "an error"],
)
def test_how_a_node_ends_is_told_from_the_error_under_way(joined, error, said, reason):
    left = Left()
    handler = of_torchrun(left)
    if joined:
        handler.next_rendezvous()
    with pytest.raises(type(error)) if error else nullcontext():
        ends(handler, error)
    assert left.said == said
    assert reason in left.outcome.reason
    if said == ["failed"]:
        assert left.outcome.failure.node_rank == 1
        assert left.outcome.failure.exit_code == error.failures[3].exitcode


def test_a_node_that_was_in_the_exit_barrier_is_done_whatever_comes_after():
    left = Left()
    handler = of_torchrun(left)
    store = handler.next_rendezvous().store
    barrier(store, 1, "torchelastic/agent/terminal_state", barrier_timeout=0.2)
    with pytest.raises(OSError, match="no room"):
        ends(handler, OSError("no room for the event"))
    assert left.said == ["note_done", "stay", "done"]
    assert store.timeout != timedelta(seconds=0.2)


def test_an_error_that_is_handled_while_the_job_runs_is_not_the_jobs():
    left = Left()
    try:
        raise failed(1)
    except ChildFailedError:  # the job before: this one is another attempt
        handler = of_torchrun(left)
        handler.next_rendezvous()
        ends(handler)
    assert left.said == ["stay", "done"]


def test_a_signal_while_it_stays_makes_it_a_lost_one():
    left = Left(stay=lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60))
    handler = of_torchrun(left)
    handler.next_rendezvous()
    with pytest.raises(KeyboardInterrupt):
        ends(handler)
    assert left.said == ["lost"]
