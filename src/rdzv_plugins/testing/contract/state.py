"""What a ``RendezvousBackend`` promises about its one state: part of the theme ``backend``."""

from __future__ import annotations

import functools
import random
import signal
import sys

from rdzv_plugins.errors import RunIdMismatch
from rdzv_plugins.interfaces import RendezvousBackend
from rdzv_plugins.testing.contract.client import number_of, numbered
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind, running
from rdzv_plugins.testing.contract.parts import assert_says, bounded, like, together

_WRITERS, _TIMES = 4, 25
_KILLS = 10
_BIG = 64 * 1024


def state_of(backend: RendezvousBackend) -> bytes | None:
    """The state that ``backend`` holds."""
    held = backend.get_state()
    return None if held is None else held[0]


class StateContract(JobTheme):
    """Promises about a state, tried through the interface alone.

    Several backends of one run in this process are several nodes.
    """

    @of_kind("state")
    def test_what_nobody_has_written_is_none(self, job: ContractJob) -> None:
        # This holds for those that ask, and for those that have asked before.
        one, two = job.created(), job.created()
        assert [one.get_state(), two.get_state(), one.get_state()] == [None] * 3
        assert one.name

    @of_kind("state")
    def test_the_first_one_writes_without_a_token_and_nobody_else_does(self, job: ContractJob) -> None:
        # The one that comes second is told what is there, as are all that read.
        one, two = job.created(), job.created()
        state, token, written = one.set_state(b"first")
        assert (state, written) == (b"first", True)
        assert two.get_state() == (b"first", token)
        again = two.set_state(b"second")
        assert again == (b"first", token, False)
        assert one.get_state() == (b"first", token)

    @of_kind("state")
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

    @of_kind("state")
    def test_a_state_is_bytes_of_any_value_and_size(self, job: ContractJob) -> None:
        # At least up to 64 KiB: torch's state of some hundred nodes.
        one, two = job.created(), job.created()
        token = None
        for state in (bytes(range(256)), random.Random(7).randbytes(_BIG), b"\n", b"small"):
            held, token, written = one.set_state(state, token)
            assert (held == state, written) == (True, True)
            assert (state_of(two) == state, two.get_state()[1]) == (True, token)

    @of_kind("state")
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

    @of_kind("state")
    def test_of_all_who_write_the_first_state_at_once_one_does(self, job: ContractJob) -> None:
        # All the others are told its state.
        nodes = [job.created() for _ in range(_WRITERS)]
        results: dict[int, tuple[bytes, object, bool]] = {}

        def write(number: int) -> None:
            results[number] = nodes[number].set_state(b"%d" % number)

        together([lambda number=number: write(number) for number in range(_WRITERS)])  # type: ignore[misc]
        (winner,) = (number for number, (_, _, written) in results.items() if written)
        assert {state for state, _, _ in results.values()} == {b"%d" % winner}
        assert state_of(nodes[0]) == b"%d" % winner

    @of_kind("state")
    def test_no_update_is_lost_between_processes_and_the_state_outlives_them(self, job: ContractJob) -> None:
        # Each reads, adds 1 and writes with the token, again if it was refused.
        first = job.created()  # it may serve the endpoint, and has loaded what that takes
        preload = "torch" if "torch" in sys.modules else ""
        options = {"mode": "count", "writers": _WRITERS, "times": _TIMES, "preload": preload}
        with running(job.options_of_a_client() | options, job.harness.environment) as process:
            assert process.first["statuses"] == [0] * _WRITERS, "a writer has failed; its stderr says why"
        last = state_of(first) or b""
        assert int(last.partition(b",")[0]) == _WRITERS * _TIMES, f"updates were lost: {last!r}"
        assert state_of(job.created()) == last

    @of_kind("state")
    def test_a_writer_that_is_killed_leaves_the_old_state_or_the_new_one(self, job: ContractJob) -> None:
        # The state is whole, and nothing is left that would keep others from writing.
        node = job.created()  # it may serve the endpoint, and has loaded what that takes
        node.set_state(numbered(1))
        options = {"mode": "write", "times": _KILLS, "preload": "torch" if "torch" in sys.modules else ""}
        with running(job.options_of_a_client() | options, job.harness.environment) as process:
            for _ in range(_KILLS):
                assert process.process.stdin is not None
                process.process.stdin.write(b"next\n")
                said = process.line()
                assert said["code"] == -signal.SIGKILL, "a writer has failed; its stderr says why"
                held = bounded("get_state()", node.get_state)
                assert held is not None, "a writer was killed, and the state is gone"
                number = number_of(held[0])
                assert number is not None, f"a writer was killed, and left a state that nobody has written: {held[0]!r}"
                assert number >= said["last"], f"write {said['last']} was done, and the state is that of {number}"
                bounded("set_state()", functools.partial(_write_behind, node, held))

    @of_kind("state")
    def test_a_writer_that_stands_still(self, job: ContractJob) -> None:
        job.gap("not tried: a node that stands still while it writes; if it holds a lock, others have to do without")


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
