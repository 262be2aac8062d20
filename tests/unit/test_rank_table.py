"""The table of a round in the log of rank 0: who is who, for people."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rdzv_plugins.coordination import KeyValue, Session
from rdzv_plugins.elastic.keys import NODES, Assignment, encode
from rdzv_plugins.elastic.rank_table import log_rank_table

ROUND = 3


def place(rank: int, world: int, round_: int = ROUND) -> Assignment:
    return Assignment(round_, rank, world, f"id{rank}", f"host{rank}", "m", 100 + rank, f"10.0.0.{rank % 250}", 8)


def logged(places: list[Assignment], caplog: pytest.LogCaptureFixture) -> tuple[str, list[str]]:
    """The line, and the rows of the table."""
    held = [KeyValue(NODES + each.node_id, encode(each), 1) for each in places]
    session = SimpleNamespace(ttl=10.0, list=lambda prefix, timeout: (held, 1))
    with caplog.at_level(logging.DEBUG):
        log_rank_table(cast(Session, cast(Any, session)), places[0])
    (_, line_level, line), (_, table_level, table) = caplog.record_tuples
    assert (line_level, table_level) == (logging.INFO, logging.DEBUG)
    return line, table.splitlines()[1:]


def test_all_nodes_of_the_round_by_rank(caplog) -> None:
    line, rows = logged(
        [place(1, 2), place(0, 2), place(0, 5, round_=2), Assignment(ROUND, left_out="it is late")], caplog
    )
    assert line == "round 3, 2 nodes: 0 host0, 1 host1"
    assert rows == ["     0  host0 (pid 100)  10.0.0.0  8 worker(s)", "     1  host1 (pid 101)  10.0.0.1  8 worker(s)"]


def test_large_table_has_its_first_rows_and_says_how_many_more(caplog) -> None:
    line, (*rows, more) = logged([place(rank, 1000) for rank in reversed(range(1000))], caplog)
    assert line.startswith("round 3, 1000 nodes: 0 host0, 1 host1, ")
    assert [row.split()[0] for row in rows] == [str(rank) for rank in range(64)]
    assert more == "  ... and 936 more"
