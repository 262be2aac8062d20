"""Theme ``backend``: what ``create`` returns keeps the contract of its kind."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rdzv_plugins.coordination import Session
from rdzv_plugins.errors import RunIdMismatch
from rdzv_plugins.interfaces import RendezvousBackend
from rdzv_plugins.testing.coordination import CoordinationKeys, CoordinationSessions, CoordinationWatches
from rdzv_plugins.testing.harness import kind_of, no_kind
from rdzv_plugins.testing.job import (
    ContractJob,
    JobTheme,
    add,
    handler_of,
    number_of,
    numbered,
    of_kind,
    state_of,
    write_on,
)
from rdzv_plugins.testing.parts import PATIENCE, Recorder, assert_says, bounded, keys_of, like
from rdzv_plugins.testing.suite import Broken, ground

T = PATIENCE
_ASKED_S = min(10.0, PATIENCE)
"""The time-out of a call that should be answered, in seconds."""
_SOON_S = max(1.0, PATIENCE / 60)
"""A round makes dozens of calls, one after the other, so each has to be answered within this many seconds."""
_ATTEMPTS = 3
_HANGS, _SLOW, _STALE, _LOSES = "it hangs", "it is slow", "it reads what is stale", "it loses events"
_WRITERS, _TIMES = 4, 25
_KILLS, _KILLED_WITHIN_S = 10, 0.02
_BIG = 64 * 1024


class ContractGround(JobTheme):
    """Promises in order of need: if one fails, the next ones and all other tests are worthless."""

    @ground(0, "create() does not do what its harness says")
    def test_create_returns_what_the_harness_says(self, job: ContractJob) -> None:
        create: Callable[[], Any] = job.created
        if job.harness.kind == "handler":
            create = lambda: handler_of(job, nodes=1)  # noqa: E731
        created = bounded("create()", create)
        found = kind_of(created)
        if found is None:
            raise Broken("create() returns no backend", no_kind(created))
        assert found == job.harness.kind, f"the harness says {job.harness.kind!r}, create() returned a {found!r}"

    @ground(1, _HANGS)
    @of_kind("state", "coordination")
    def test_each_call_is_answered_soon(self, job: ContractJob) -> None:
        # Within its time-out in any case, and within a second when tried again: a busy machine is no fault.
        if job.harness.kind == "state":
            state = job.created()
            answered_soon("get_state()", state.get_state)
            answered_soon("set_state()", lambda: state.set_state(b"state", (state.get_state() or (b"", None))[1]))
            return
        session: Session = bounded("open_session()", job.session)
        answered_soon("create()", lambda: session.create("k", b"", timeout=_ASKED_S))
        answered_soon("put()", lambda: session.put({"k": b""}, timeout=_ASKED_S))
        answered_soon("list()", lambda: session.list("", timeout=_ASKED_S))
        watches = []
        answered_soon("watch()", lambda: watches.append(session.watch("", Recorder(), timeout=_ASKED_S)))
        for watch in watches:
            bounded("cancel() of a watch", watch.cancel)
        answered_soon("delete()", lambda: session.delete(["k"], timeout=_ASKED_S))
        bounded("close() of a session", session.close)

    @ground(2, _STALE)
    @of_kind("state", "coordination")
    def test_what_one_writes_others_read(self, job: ContractJob) -> None:
        # They read it at once, again and again, whatever they have read before.
        if job.harness.kind == "state":
            nodes = [job.created(), job.created()]
            token = None
            for number in range(6):
                written, token, _ = nodes[number % 2].set_state(b"%d" % number, token)
                for node in nodes:
                    read = node.get_state()
                    assert read == (written, token), f"{(written, token)} was written, and then read: {read}"
            return
        sessions = [job.session(), job.session()]
        for number in range(6):
            value = b"%d" % number
            sessions[number % 2].put({"k": value}, timeout=T)
            for session in sessions:
                read_now = keys_of(session)
                assert read_now == {"k": value}, f"{value!r} was written, and then read: {read_now}"

    @ground(3, _LOSES)
    @of_kind("coordination")
    def test_a_watcher_hears_what_others_do(self, job: ContractJob) -> None:
        # It hears of one change at a time, of several in one put, and of deletions.
        one, two, told = job.session(), job.session(), Recorder()
        one.watch("m/", told, timeout=T)
        two.put({"m/1": b"a"}, timeout=T)
        two.put({"m/2": b"b", "m/3": b"c", "other": b""}, timeout=T)
        two.delete(["m/1"], timeout=T)
        assert told.take(4) == [("m/1", b"a"), ("m/2", b"b"), ("m/3", b"c"), ("m/1", None)]


def answered_soon(what: str, ask: Callable[[], object]) -> None:
    """Assert that a call returns, and not late every time. Raises ``Broken``, or what the call itself raises."""
    took = []
    for _ in range(_ATTEMPTS):
        begin = time.monotonic()
        bounded(what, ask, _ASKED_S)
        took.append(time.monotonic() - begin)
        if took[-1] <= _SOON_S:
            return
    raise Broken(
        _SLOW,
        f"{what} takes {min(took):.1f} s, at the best of {_ATTEMPTS} times; more than {_SOON_S:g} s, which is much for "
        "one of the many calls of a round. (Is the service far away? RDZV_CONFORMANCE_PATIENCE/60 is the limit.)",
    )


class StateContract(JobTheme, kind="state"):
    """Promises about a state, tried through the interface alone.

    Several backends of one run in this process are several nodes.
    """

    def test_what_nobody_has_written_is_none(self, job: ContractJob) -> None:
        # This holds for those that ask, and for those that have asked before.
        one, two = job.created(), job.created()
        assert [one.get_state(), two.get_state(), one.get_state()] == [None] * 3
        assert one.name

    def test_the_first_one_writes_without_a_token_and_nobody_else_does(self, job: ContractJob) -> None:
        # The one that comes second is told what is there, as are all that read.
        one, two = job.created(), job.created()
        state, token, written = one.set_state(b"first")
        assert (state, written) == (b"first", True)
        assert two.get_state() == (b"first", token)
        again = two.set_state(b"second")
        assert again == (b"first", token, False)
        assert one.get_state() == (b"first", token)

    def test_a_token_is_good_for_one_write(self, job: ContractJob) -> None:
        # A stale one is refused, and the existing state is returned with its token.
        one, two = job.created(), job.created()
        _, first, _ = one.set_state(b"1")
        _, second, written = two.set_state(b"2", first)
        assert written, "set_state() says that it has not written, and nobody else has"
        assert second != first
        assert one.set_state(b"3", first) == (b"2", second, False)
        assert two.get_state() == (b"2", second)
        assert one.set_state(b"3", second)[2] is True
        assert state_of(two) == b"3"

    def test_a_state_is_bytes_of_any_value_and_size(self, job: ContractJob) -> None:
        # At least up to 64 KiB: torch's state of some hundred nodes.
        one, two = job.created(), job.created()
        token = None
        for state in (bytes(range(256)), random.Random(7).randbytes(_BIG), b"\n", b"small"):
            held, token, written = one.set_state(state, token)
            assert (held == state, written) == (True, True)
            assert (state_of(two) == state, two.get_state()[1]) == (True, token)

    def test_states_of_two_runs_are_kept_apart(self, job: ContractJob) -> None:
        # Or the second is refused by name, if an endpoint belongs to one run.
        runs = {job.run_id: job.created()}
        _, token, _ = runs[job.run_id].set_state(job.run_id.encode())
        for another in like(job.run_id):
            try:
                other = runs[another] = job.created(run_id=another)
            except RunIdMismatch as error:
                assert_says(error, another)
                continue
            assert other.get_state() is None, f"run {another!r} has the state of another"
            refused = other.set_state(b"theirs", token)
            assert refused is None or refused[2] is False, "a token of another run was taken for one of this"
            assert other.get_state() is None
            assert other.set_state(another.encode())[2] is True
        assert {run: state_of(each) for run, each in runs.items()} == {run: run.encode() for run in runs}

    def test_no_update_is_lost_between_processes_and_the_state_outlives_them(self, job: ContractJob) -> None:
        # Each reads, adds 1 and writes with the token, again if it was refused.
        first = job.created()  # it may serve the endpoint, and has loaded what that takes
        with ExitStack() as running:
            writers = [running.enter_context(job.client(add, _TIMES)) for _ in range(_WRITERS)]
            for writer in writers:
                assert writer.next() == "ready"
            for writer in writers:
                writer.go_on()
            for writer in writers:
                assert writer.next() == "done"
        last = state_of(first) or b""
        assert int(last.partition(b",")[0]) == _WRITERS * _TIMES, f"updates were lost: {last!r}"
        assert state_of(job.created()) == last

    def test_a_writer_that_is_killed_leaves_the_old_state_or_the_new_one(self, job: ContractJob) -> None:
        # The state is whole, and nothing is left that would keep others from writing.
        node = job.created()  # it may serve the endpoint, and has loaded what that takes
        node.set_state(numbered(1))
        for _ in range(_KILLS):
            with job.client(write_on) as writer:
                done = writer.next()
                time.sleep(random.uniform(0, _KILLED_WITHIN_S))
                writer.kill()
                done = [done, *writer.rest()][-1]
            held = bounded("get_state()", node.get_state)
            assert held is not None, "a writer was killed, and the state is gone"
            number = number_of(held[0])
            assert number is not None, f"a writer was killed, and left a state that nobody has written: {held[0]!r}"
            assert number >= done, f"write {done} was done, and the state is that of {number}"
            bounded("set_state()", functools.partial(_write_behind, node, held))


def _write_behind(node: RendezvousBackend, held: tuple[bytes, object]) -> None:
    """Write once more, with the token of ``held``; a write of the dead that was on its way may still come first."""
    state, token = held
    for _ in range(2):
        written = node.set_state(numbered((number_of(state) or 0) + 1), token)
        assert written is not None, "the state is gone"
        if written[2]:
            return
        state, token, _ = written
    raise AssertionError("a write with the token that was read is refused, though nobody else writes")


class HandlerContract(JobTheme, kind="handler"):
    """Promises of a handler, tried through the interface alone."""

    @ground(1, "it hangs")
    def test_what_has_to_return_at_once_does_while_the_others_are_away(self, job: ContractJob) -> None:
        # All calls except ``next_rendezvous``, which is not made here.
        handler = handler_of(job, nodes=2)
        assert bounded("get_run_id()", handler.get_run_id) == job.run_id
        assert bounded("get_backend()", handler.get_backend)
        assert isinstance(bounded("use_agent_store", lambda: handler.use_agent_store), bool)
        assert bounded("is_closed()", handler.is_closed) is False
        assert bounded("num_nodes_waiting()", handler.num_nodes_waiting) == 0
        assert bounded("shutdown()", handler.shutdown) is True

    def test_a_job_of_one_node_is_complete_at_once_and_can_be_closed(self, job: ContractJob) -> None:
        # Afterwards it is closed.
        handler = handler_of(job, nodes=1)
        info = bounded("next_rendezvous()", handler.next_rendezvous)
        assert (info.rank, info.world_size) == (0, 1)
        info.store.set("key", "value")
        assert info.store.get("key") == b"value"
        assert bounded("num_nodes_waiting()", handler.num_nodes_waiting) == 0
        assert bounded("is_closed()", handler.is_closed) is False
        bounded("set_closed()", handler.set_closed)
        assert bounded("is_closed()", handler.is_closed) is True
        assert bounded("shutdown()", handler.shutdown) is True


class BackendTheme(
    ContractGround, CoordinationKeys, CoordinationSessions, CoordinationWatches, StateContract, HandlerContract
):
    """Tests a state with its token, sessions with keys and watches, or a handler's methods; the others are gaps."""

    theme = "backend"
