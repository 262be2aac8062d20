from __future__ import annotations

import pytest

from rdzv_plugins.backends.etcd.space import MOST_BYTES, MOST_OPERATIONS, Space


def sizes(items: dict[str, bytes]) -> list[int]:
    return [len(operations) for _, operations in Space("/p", "run").puts(items, 1)]


@pytest.mark.parametrize(
    ("items", "parts"),
    [
        ({}, [0]),
        ({str(n): b"" for n in range(MOST_OPERATIONS)}, [MOST_OPERATIONS]),
        ({str(n): b"" for n in range(2 * MOST_OPERATIONS + 1)}, [MOST_OPERATIONS, MOST_OPERATIONS, 1]),
        ({str(n): b"x" * (MOST_BYTES // 3) for n in range(5)}, [2, 2, 1]),
        ({"big": b"x" * 2 * MOST_BYTES, "small": b""}, [1, 1]),  # what is too big for etcd is for etcd to say
    ],
)
def test_writes_are_split_into_as_few_transactions_as_the_limits_allow_in_order(items, parts):
    assert sizes(items) == parts
    names = [name for names, _ in Space("/p", "run").puts(items, 1) for name in names]
    assert names == list(items)


def test_deletes_are_split_and_name_each_key_once():
    space = Space("/p", "run")
    keys = [str(n) for n in range(MOST_OPERATIONS + 1)]
    assert [len(part) for part in space.deletes([*keys, *keys])] == [MOST_OPERATIONS, 1]
    assert [len(part) for part in space.deletes([])] == [0]


def test_runs_whose_names_begin_alike_share_nothing():
    paths = [Space("/p/", run).path for run in ("a", "a/k", "a/", "a%2F", "ab", "")]
    assert paths[:2] == ["/p/a/", "/p/a%2Fk/"]
    for one in paths:
        assert [other for other in paths if other.startswith(one)] == [one]
    leases = {Space("/p", "a").run_lease, Space("/p", "b").run_lease, Space("/q", "a").run_lease}
    assert len(leases) == 3
    assert all(0 < lease < 1 << 63 for lease in leases)
