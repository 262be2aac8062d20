"""The basis of every other promise of a state or a coordination service: part of the theme ``backend``, and first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rdzv_plugins.coordination import Session
from rdzv_plugins.testing.contract.handler import handler_of
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind
from rdzv_plugins.testing.contract.parts import PATIENCE, Recorder, bounded, keys_of
from rdzv_plugins.testing.kinds import kind_of, no_kind
from rdzv_plugins.testing.suite.ground import Broken, ground

T = PATIENCE
_ASKED_S = min(10.0, PATIENCE)
"""The time-out of a call that should be answered, in seconds."""
_SOON_S = max(1.0, PATIENCE / 60)
"""A round makes dozens of calls, one after the other, so each has to be answered within this many seconds."""
_ATTEMPTS = 3
_HANGS, _SLOW, _STALE, _LOSES = "it hangs", "it is slow", "it reads what is stale", "it loses events"


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
