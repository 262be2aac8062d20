"""What a ``CoordinationBackend`` promises about keys: part of the theme ``backend``."""

from __future__ import annotations

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.errors import RunIdMismatch
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind
from rdzv_plugins.testing.contract.parts import PATIENCE, Recorder, assert_says, keys_of, like, opened, together

T = PATIENCE
_MANY = 400


class CoordinationKeys(JobTheme):
    """Promises about keys, tried through the interface alone.

    The natural differences between services are left open.
    """

    @of_kind("coordination")
    def test_a_key_is_created_once(self, job: ContractJob) -> None:
        # Whoever comes first creates it; the second is told what is there.
        one, two = job.session(), job.session()
        done, mine = one.create("k", b"first", timeout=T)
        assert (done, mine.key, mine.value) == (True, "k", b"first")
        assert mine.revision > 0, f"a key has revision {mine.revision}: it has to be more than 0"
        assert two.create("k", b"second", timeout=T) == (False, mine)
        assert one.list("", timeout=T)[0] == [mine]

    @of_kind("coordination")
    def test_keys_are_listed_by_prefix_in_the_order_of_their_last_changes(self, job: ContractJob) -> None:
        # The revision of the answer is not one of the past.
        one = job.session()
        last = one.put({"a/2": b"", "b/1": b"\0\xff", "a/1": b"x" * 5000}, timeout=T)
        again = one.put({"a/2": b"new"}, timeout=T)
        assert last is not None
        assert again is not None
        assert again > last, f"a second write has revision {again}, and the first had {last}"
        found, revision = one.list("a/", timeout=T)
        assert [(each.key, each.value) for each in found] == [("a/1", b"x" * 5000), ("a/2", b"new")]
        assert [each.revision for each in found] == [last, again]
        # greater if other runs have changed keys since
        assert revision >= again, f"list() answers with revision {revision}, and one of its keys has {again}"
        assert keys_of(one).keys() == {"a/1", "a/2", "b/1"}
        nothing, revision = one.list("nothing", timeout=T)
        assert (list(nothing), revision >= again) == ([], True)

    @of_kind("coordination")
    def test_keys_are_text_of_any_alphabet(self, job: ContractJob) -> None:
        # They may contain what a service's own patterns and names might take for something else.
        one, recorder = job.session(), Recorder()
        one.watch("узел/", recorder, timeout=T)
        one.put({"узел/é": b"1"}, timeout=T)
        assert recorder.take(1) == [("узел/é", b"1")]
        assert keys_of(one, "узел/") == {"узел/é": b"1"}
        odd = {"a*b": b"1", "a[b]?": b"2", "a\\b %": b"3", 'a"b': b"4"}
        one.put(odd, timeout=T)
        for key, value in odd.items():
            assert keys_of(one, key) == {key: value}

    @of_kind("coordination")
    def test_a_guard_that_has_changed_stops_the_whole_put(self, job: ContractJob) -> None:
        # Changed to the same value is changed; gone is changed; created anew is changed.
        one, two = job.session(), job.session()
        _, guard = one.create("guard", b"1", timeout=T)
        assert one.put({"x": b"1", "y": b"1"}, guard=guard, timeout=T) is not None
        two.put({"guard": b"1"}, timeout=T)
        assert one.put({"x": b"2", "z": b"2"}, guard=guard, timeout=T) is None
        assert keys_of(one) == {"guard": b"1", "x": b"1", "y": b"1"}
        two.delete(["guard"], timeout=T)
        assert one.put({"x": b"3"}, guard=guard, timeout=T) is None
        two.create("guard", b"1", timeout=T)
        assert one.put({"x": b"4"}, guard=guard, timeout=T) is None
        assert keys_of(one)["x"] == b"1"

    @of_kind("coordination")
    def test_a_guard_among_the_items_is_compare_and_put(self, job: ContractJob) -> None:
        # The revision that a put has returned guards the next one.
        one = job.session()
        _, before = one.create("k", b"1", timeout=T)
        revision = one.put({"k": b"2"}, guard=before, timeout=T)
        assert revision is not None
        assert one.put({"k": b"3"}, guard=before, timeout=T) is None
        assert one.put({"k": b"4"}, guard=KeyValue("k", b"2", revision), timeout=T) is not None

    @of_kind("coordination")
    def test_many_who_compare_and_put_at_once_lose_nothing(self, job: ContractJob) -> None:
        # Fencing: of all that write under the same revision, one succeeds.
        sessions = [job.session() for _ in range(4)]
        sessions[0].put({"count": b"0"}, timeout=T)

        def count(number: int) -> None:
            for _ in range(10):
                while True:
                    (held,), _ = sessions[number].list("count", timeout=T)
                    more = {"count": b"%d" % (int(held.value) + 1)}
                    if sessions[number].put(more, guard=held, timeout=T) is not None:
                        break

        together([lambda number=number: count(number) for number in range(4)])  # type: ignore[misc]
        assert keys_of(sessions[0]) == {"count": b"40"}

    @of_kind("coordination")
    def test_one_put_takes_as_many_items_as_a_large_job_has_nodes(self, job: ContractJob) -> None:
        # They take effect in the given order if a service has to split them; with a guard that has changed, none does.
        one, recorder = job.session(), Recorder()
        one.watch("n/", recorder, timeout=T)
        _, guard = one.create("guard", b"", timeout=T)
        items = {f"n/{number}": b"x" * 200 for number in range(_MANY)}
        last = one.put(items, guard=guard, timeout=T)
        events = recorder.until(lambda events: len(events) >= _MANY)
        assert [each.key for each in events] == list(items)
        assert events[-1].revision == last
        one.put({"guard": b"new"}, timeout=T)
        assert one.put(dict.fromkeys(items, b""), guard=guard, timeout=T) is None
        assert keys_of(one, "n/") == items
        assert one.delete(items, timeout=T)
        assert keys_of(one) == {"guard": b"new"}

    @of_kind("coordination")
    def test_delete_takes_what_exists_unless_its_guard_has_changed(self, job: ContractJob) -> None:
        # Something missing is no error.
        one = job.session()
        _, guard = one.create("guard", b"", timeout=T)
        one.put({"a": b"", "b": b"", "c": b""}, timeout=T)
        assert one.delete(["a", "missing"], timeout=T) is True
        assert one.delete(iter(["b"]), guard=guard, timeout=T) is True
        one.put({"guard": b"new"}, timeout=T)
        assert one.delete(["c", "guard"], guard=guard, timeout=T) is False
        assert keys_of(one) == {"c": b"", "guard": b"new"}

    @of_kind("coordination")
    def test_runs_are_kept_apart(self, job: ContractJob) -> None:
        # Or the second is refused by name, if an endpoint belongs to one run.
        runs = {job.run_id: (job.session(), Recorder())}
        for another in like(job.run_id):
            try:
                runs[another] = opened(job.backend(run_id=another)), Recorder()
            except RunIdMismatch as error:
                assert_says(error, another, job.run_id)
        for session, recorder in runs.values():
            session.watch("", recorder, timeout=T)
        for run, (session, _) in runs.items():
            session.delete(["k"], timeout=T)
            assert session.create("k", run.encode(), timeout=T)[0], f"run {run!r} has keys of another"
        for run, (session, recorder) in runs.items():
            assert keys_of(session) == {"k": run.encode()}, f"run {run!r} sees keys of another"
            session.put({"fence": b""}, timeout=T)
            assert recorder.take(2) == [("k", run.encode()), ("fence", b"")], f"run {run!r} is told of another's keys"
