"""Theme *store*: what workers and agents of a round share, tested with torch's own client from two nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar, TypeAlias, cast

import pytest

from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.nodes import NodeError, NodeProcess, NodesJob, NodeTheme, in_round

_SOON = timedelta(seconds=0.2)
_LARGE = bytes(range(256)) * 1024
_ADDS = 40
_ROUNDS = 5

Pair: TypeAlias = tuple[NodeProcess, NodeProcess]
_PAIR = pytest.StashKey[tuple[Harness, Pair]]()


def _write(node: NodeProcess, operation: str, key: str, value: str) -> None:
    """Write, then ask: torch's writes have no answer; once a later request has one, every worker sees the write."""
    node.worker(operation, key, value)
    assert node.worker("check", [key]) is True


class StoreTheme(NodeTheme):
    """Tests every operation of a store, and that each round has its own store: new, empty and private."""

    theme: ClassVar[str] = "store"

    @pytest.fixture
    def pair(self, tmp_path_factory: pytest.TempPathFactory) -> Pair:
        """Two nodes of one round, the same for all tests of the class, which use different keys."""
        of_class = self._request.node.getparent(pytest.Class)
        kept, _ = of_class.stash.get(_PAIR, (None, None))
        if kept is not self.harness:  # an author's harness may differ from test to test
            with contextlib.ExitStack() as unless_kept:
                job = unless_kept.enter_context(NodesJob(self.harness, tmp_path_factory.mktemp("store"), "2"))
                first, second = job.start(2)
                of_class.stash[_PAIR] = self.harness, (first, second)
                of_class.addfinalizer(unless_kept.pop_all().close)
        return cast(Pair, of_class.stash[_PAIR][1])

    @pytest.fixture
    def own_pair(self) -> Iterator[Pair]:
        with self.nodes("2") as job:
            first, second = job.start(2)
            yield first, second

    # the workers' store

    def test_set_and_get(self, pair: Pair) -> None:
        """What a worker sets, a worker of the other node gets: any bytes, and the newest."""
        first, second = pair
        first.worker("set", "text", "value")
        assert second.worker("get", "text") == b"value"
        _write(second, "set", "text", "a newer one")
        assert first.worker("get", "text") == b"a newer one"
        first.worker("set", "empty", "")
        assert second.worker("get", "empty") == b""
        first.worker("set", "large", _LARGE)
        assert second.worker("get", "large") == _LARGE

    def test_add(self, pair: Pair) -> None:
        """Adds of several workers at once are all counted, each once."""
        answers = [node.worker_later("add", "sum", 1) for _ in range(_ADDS) for node in pair]
        assert sorted(each.result() for each in answers) == list(range(1, 2 * _ADDS + 1))
        first, second = pair
        assert first.worker("add", "sum", -2 * _ADDS - 5) == -5
        assert second.worker("get", "sum") == b"-5"

    def test_wait(self, pair: Pair) -> None:
        """A wait ends when all its keys are there, and raises when its time is over."""
        # torch's get begins with the same wait
        first, second = pair
        waiting = second.worker_later("wait", ["one", "two"])
        first.worker("set", "one", "")
        assert not waiting.done()
        first.worker("set", "two", "")
        waiting.result()
        error = second.worker_later("wait", ["one", "nobody sets this"], _SOON).error()
        assert error.is_a("DistStoreError"), error
        second.worker("set", "and it goes on", "")

    def test_compare_set(self, pair: Pair) -> None:
        """A compare-and-set writes only over the expected value, and answers with the one that holds."""
        first, second = pair
        assert first.worker("compare_set", "compared", "", "one") == b"one"
        assert second.worker("compare_set", "compared", "", "two") == b"one"
        assert second.worker("compare_set", "compared", "one", "two") == b"two"
        assert first.worker("compare_set", "compared", "one", "three") == b"two"
        assert first.worker("get", "compared") == b"two"

    def test_delete(self, pair: Pair) -> None:
        """A deleted key is gone for all, and can be set again."""
        first, second = pair
        _write(first, "set", "deleted", "value")
        assert second.worker("delete_key", "deleted") is True
        assert first.worker("check", ["deleted"]) is False
        assert first.worker("delete_key", "deleted") is False
        first.worker("set", "deleted", "again")
        assert second.worker("get", "deleted") == b"again"

    def test_many_keys_at_once(self, pair: Pair) -> None:
        """Several keys are set, and read, by one call, in their order."""
        first, second = pair
        keys, values = [f"many/{number}" for number in range(50)], [f"value {number}" for number in range(50)]
        first.worker("multi_set", keys, values)
        assert second.worker("multi_get", keys[::-1]) == [value.encode() for value in values[::-1]]

    def test_append(self, pair: Pair) -> None:
        """Text that workers append to a key comes one after the other."""
        first, second = pair
        for node, text in ((first, "one "), (second, "two "), (first, "three")):
            _write(node, "append", "appended", text)
        assert second.worker("get", "appended") == b"one two three"

    def test_check_and_number_of_keys(self, pair: Pair) -> None:
        """Check tells whether all the keys are there, at once; their number counts what is set and deleted."""
        first, second = pair
        before = second.worker("num_keys")
        assert second.worker("check", ["checked", "checked too"]) is False
        _write(first, "set", "checked", "")
        assert second.worker("check", ["checked", "checked too"]) is False
        _write(first, "set", "checked too", "")
        assert second.worker("check", ["checked", "checked too"]) is True
        assert second.worker("num_keys") == before + 2
        first.worker("delete_key", "checked")
        assert second.worker("num_keys") == before + 1

    def test_what_is_known_to_be_done_is_seen(self, pair: Pair) -> None:
        """When a later request of the writer was answered, every worker finds what it has written or deleted."""
        first, second = pair
        for turn in range(_ROUNDS):
            key, value = f"done/{turn % 2}", f"value {turn}"
            _write(first, "set", key, value)
            for node in (second, first, second):  # the second time from what a proxy may have kept
                assert node.worker("get", key) == value.encode(), f"round {turn}: node {node.name} reads an old value"
            count = second.worker("num_keys")
            first.worker("set", f"done/more/{turn}", value)
            assert first.worker("num_keys") == count + 1
            assert second.worker("check", [key, f"done/more/{turn}"]) is True
            assert second.worker("num_keys") == count + 1, f"round {turn}: node {second.name} counts too few keys"
            assert second.worker("delete_key", f"done/more/{turn}") is True
            assert first.worker("check", [f"done/more/{turn}"]) is False, f"round {turn}: a deleted key is there"

    def test_keys_outlive_the_worker_that_set_them(self, pair: Pair) -> None:
        """A worker's keys stay when it ends, and the next one finds them."""
        first, second = pair
        first.worker("set", "left behind", "value")
        first.worker_quit()
        assert second.worker("get", "left behind") == b"value"
        assert first.worker("get", "left behind") == b"value"

    # the agents' store

    def test_agents_share_a_store(self, pair: Pair) -> None:
        """The agents of a round share a store: set, get, add, check, wait, compare-and-set, delete."""
        first, second = pair
        first.store("set", "text", "of the agents")
        assert second.store("get", "text") == b"of the agents"
        assert [first.store("add", "sum", 2), second.store("add", "sum", 3)] == [2, 5]
        assert second.store("compare_set", "compared", "", "one") == b"one"
        assert first.store("compare_set", "compared", "two", "three") == b"one"
        first.store("multi_set", ["a", "b"], ["1", "2"])
        assert second.store("multi_get", ["b", "a"]) == [b"2", b"1"]
        assert second.store("check", ["text", "compared"]) is True
        assert second.store("delete_key", "text") is True
        assert first.store("check", ["text"]) is False
        error = first.store_later("wait", ["nobody sets this"], _SOON).error()
        assert error.is_a("StoreTimeout"), error

    def test_agents_and_workers_do_not_meet(self, pair: Pair) -> None:
        """What agents set is not among the workers' keys, and the other way round."""
        first, second = pair
        first.store("set", "of an agent", "")
        first.worker("set", "of a worker", "")
        assert second.worker("check", ["of an agent"]) is False
        assert second.store("check", ["of a worker"]) is False

    def test_barrier_of_agents(self, pair: Pair) -> None:
        """The barrier at torch's end lets the agents go when the last of them has come."""
        first, second = pair
        assert first.store("add", "barrier/num_members", 1) == 1
        waiting = first.store_later("wait", ["barrier/last_member"])
        assert second.store("add", "barrier/num_members", 1) == 2
        assert not waiting.done()
        second.store("set", "barrier/last_member", "")
        second.store("wait", ["barrier/last_member"])
        waiting.result()

    # rounds

    def test_a_new_round_has_none_of_the_old_keys(self, own_pair: Pair) -> None:
        """A new round begins without a key of the round before, for workers and for agents."""
        for node in own_pair:
            node.worker("set", f"left by {node.name}", "over")
            node.worker("add", "sum", 7)
            node.store("set", f"left by {node.name}", "over")
        left = [f"left by {node.name}" for node in own_pair]
        for node in own_pair:
            node.worker_quit()
        in_round(own_pair)
        for node in own_pair:
            for key in (*left, "sum"):
                assert node.worker("check", [key]) is False, f"the workers of a new round find the old key {key!r}"
            for key in left:
                assert node.store("check", [key]) is False, f"the agents of a new round find the old key {key!r}"
        first, second = own_pair
        first.worker("set", "new", "value")
        assert second.worker("get", "new") == b"value"
        second.store("set", "new", "value")
        assert first.store("get", "new") == b"value"

    def test_a_late_worker_writes_nothing_into_the_new_round(self, own_pair: Pair) -> None:
        """A worker of the round before, which still runs, cannot write into the new one."""
        for node in own_pair:
            node.worker("set", f"{node.name} is connected", "")
        in_round(own_pair)
        for node in own_pair:
            try:
                node.worker("set", f"late from {node.name}", "")
            except NodeError:  # cut off, as it should be
                pass
            node.worker_quit()
        for node in own_pair:
            for late in own_pair:
                key = f"late from {late.name}"
                assert node.worker("check", [key]) is False, f"the key {key!r} of an old worker is in the new round"

    def test_a_job_of_one_node(self) -> None:
        """A job of one node has a store too, and a new one in its second round."""
        with self.nodes("1") as job:
            (node,) = job.start(1)
            node.worker("set", "key", "value")
            assert node.worker("get", "key") == b"value"
            node.worker_quit()
            in_round([node])
            assert node.worker("check", ["key"]) is False
