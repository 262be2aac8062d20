"""What torch passes on when it meets our entry points, and what becomes of it."""

import logging
import os
import signal
import time
from contextlib import nullcontext, suppress
from datetime import timedelta
from importlib.metadata import entry_points

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.utils.store import barrier

from rdzv_plugins.errors import RunIdMissing, UnknownBackend
from rdzv_plugins.queued_logging import unqueue_logging
from rdzv_plugins.torch_bridge import bridge
from rdzv_plugins.torch_bridge.torchrun_handler import TorchrunHandler


def parameters(backend="rdzv-plugins.static", **conf):
    return RendezvousParameters(backend, "h:1", "run", 2, 4, local_addr="10.0.0.1", **conf)


@pytest.fixture(autouse=True)
def no_node_rank(monkeypatch):
    monkeypatch.delenv("PET_NODE_RANK", raising=False)


@pytest.fixture(autouse=True)
def logging_as_before():
    """The bridge queues what the package logs in the process that it is called in, and chooses what is shown."""
    logger = logging.getLogger("rdzv_plugins")
    level, handlers = logger.level, list(logger.handlers)
    yield
    unqueue_logging()
    logger.setLevel(level)
    logger.handlers[:] = handlers


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
    before = logger.level, list(logger.handlers), logging.root.level
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.delenv("LOGLEVEL", raising=False)
    if given:
        monkeypatch.setenv("LOGLEVEL", given)
    logging.root.setLevel(root)
    logger.setLevel(own)
    logger.handlers[:] = []
    try:
        with suppress(UnknownBackend):
            bridge.create(parameters(bridge.PREFIX))
        unqueue_logging()
        assert logger.level == expected
        assert len(logger.handlers) == 1
    finally:
        logger.setLevel(before[0])
        logger.handlers[:] = before[1]
        logging.root.setLevel(before[2])


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


def test_default_run_id_counts_as_not_chosen():
    """torch does not say whether it was: where others meet too it is refused."""
    assert bridge.request_from(parameters()).is_named
    nameless = parameters("rdzv-plugins.etcd")
    nameless.run_id = "none"
    assert not bridge.request_from(nameless).is_named
    with pytest.raises(RunIdMissing, match=r"other jobs may meet at h:1, too.* --rdzv-id"):
        bridge.create(nameless)


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


class Left:
    """What a handler is told at the end."""

    def __init__(self):
        self.said = []

    def next_rendezvous(self):
        return RendezvousInfo(HashStore(), 1, 2, None)

    def note_done(self):
        self.said.append("note_done")

    def stay(self):
        self.said.append("stay")

    def leave(self, outcome):
        self.said.append(outcome.end)
        self.outcome = outcome

    def shutdown(self):
        return True


def ended(handler, error=None):
    """As torch's agent ends: in a ``finally``, with an error under way or without one."""
    try:
        if error is not None:
            raise error
    finally:
        handler.shutdown()


def failed(code):
    return ChildFailedError("train.py", {3: ProcessFailure(1, 812, code, "<N/A>")})


def test_a_node_that_leaves_a_round_without_an_error_is_done():
    left = Left()
    handler = TorchrunHandler(left)
    handler.next_rendezvous()
    ended(handler)
    assert left.said == ["stay", "done"]


def test_a_node_that_was_in_the_exit_barrier_is_done_whatever_comes_after():
    left = Left()
    handler = TorchrunHandler(left)
    store = handler.next_rendezvous().store
    barrier(store, 1, "torchelastic/agent/terminal_state", barrier_timeout=0.2)
    with pytest.raises(OSError, match="no room"):
        ended(handler, OSError("no room for the event"))
    assert left.said == ["note_done", "stay", "done"]
    assert store.timeout != timedelta(seconds=0.2)


@pytest.mark.parametrize(("code", "how"), [(7, "exit code 7"), (-9, "signal 9")])
def test_used_up_restarts_end_the_job(code, how):
    left = Left()
    handler = TorchrunHandler(left)
    handler.next_rendezvous()
    with pytest.raises(ChildFailedError):
        ended(handler, failed(code))
    assert left.said == ["failed"]
    assert left.outcome.reason == f"rank 3 (local rank 1, pid 812) ended with {how}"
    assert (left.outcome.failure.node_rank, left.outcome.failure.exit_code) == (1, code)


@pytest.mark.parametrize("error", [None, ValueError("a fault")])
def test_a_node_that_never_was_in_a_round_is_lost(error):
    left = Left()
    handler = TorchrunHandler(left)
    with pytest.raises(ValueError, match="a fault") if error else nullcontext():
        ended(handler, error)
    assert left.said == ["lost"]
    assert ("a fault" if error else "before a round was complete") in left.outcome.reason


def test_an_error_that_is_handled_while_the_job_runs_is_not_the_jobs():
    left = Left()
    try:
        raise failed(1)
    except ChildFailedError:  # the job before: this one is another attempt
        handler = TorchrunHandler(left)
        handler.next_rendezvous()
        ended(handler)
    assert left.said == ["stay", "done"]


def test_a_signal_while_it_stays_makes_it_a_lost_one():
    left = Left()
    left.stay = lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60)
    handler = TorchrunHandler(left)
    handler.next_rendezvous()
    with pytest.raises(KeyboardInterrupt):
        ended(handler)
    assert left.said == ["lost"]
