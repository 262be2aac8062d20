"""What nodes say of themselves and are told: JSON that anybody may have written, read without harm; and the table."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from rdzv_plugins.coordination import KeyValue, Session
from rdzv_plugins.elastic import keys
from rdzv_plugins.elastic.join import log_rank_table
from rdzv_plugins.elastic.keys import NODES, Assignment, Finishing, Heartbeat, Member, Round, decode, encode

MEMBER = Member("id", "host-a", "boot host-a", 7, "10.0.0.1", "10.0.0.1", 2, node_rank=0, store=(3, "::1", 9))
KEEPER = replace(MEMBER, last_round=2, keeps=Assignment(3, 0, 2, "id", host="host-a", master_port=9))
VOTE = {"round": 1, "rank": 0, "world": 1}


def written(**fields: object) -> bytes:
    """The member, with fields that no node of ours would write."""
    return json.dumps(json.loads(encode(MEMBER)) | fields).encode()


@pytest.mark.parametrize(
    "value",
    [MEMBER, KEEPER, replace(MEMBER, node_rank=None, nproc=0), Assignment(2, 0, 1), Round(3, "over", 2, "ü")],
)
def test_what_is_written_can_be_read(value):
    assert decode(type(value), encode(value)) == value


def test_place_is_kept_until_its_round_is_left():
    assert KEEPER.kept == KEEPER.keeps
    assert replace(KEEPER, last_round=3).kept is None


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"node_rank": 2**31}, "$.node_rank"),
        ({"node_rank": True}, "$.node_rank"),
        ({"nproc": 10**9}, "$.nproc"),
        ({"last_round": -1}, "$.last_round"),
        ({"heartbeat_wanted": 2**60}, "$.heartbeat_wanted"),
        ({"leaving": "soon"}, "$.leaving"),
        ({"store": [3, "::1", 65536]}, "$.store[2]"),
        ({"store": [3, "::1"]}, "$.store"),
        ({"store": "abc"}, "$.store"),
        ({"host": "h" * 600}, "$.host"),
        ({"address": None}, "$.address"),
        ({"what": 1}, "`what`"),
        ({"keeps": {"round": 3, "rank": -5}}, "$.keeps.rank"),
        ({"keeps": {"round": 3, "keeps": {"round": 3}}}, "$.keeps"),
        ({"votes": [VOTE] * 17}, "$.votes"),
    ],
)
def test_nonsense_is_not_read_and_named(fields, at):
    with pytest.raises(ValueError, match="not a Member") as raised:
        decode(Member, written(**fields))
    assert at in str(raised.value)
    assert "pid 7" in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("text", [b"", b"[]", b"3", b"{}", b'{"node_id": 1, "what": 2}', b"\xff", b"\x80\x04K\x01."])
def test_anything_else_is_no_member(text):
    with pytest.raises(ValueError, match="not a Member"):
        decode(Member, text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Assignment, '{"round": 1, "rank": -2}'),
        (Assignment, '{"round": 1, "master_port": 70000}'),
        (Round, '{"number": -1}'),
        (Round, '{"state": "lovely"}'),
        (Heartbeat, '{"number": "1"}'),
        (Finishing, '{"by": "' + "x" * 600 + '"}'),
    ],
)
def test_nonsense_of_other_kinds(kind, text):
    with pytest.raises(ValueError, match=rf"not a {kind.__name__}: .* at `\$\."):
        decode(kind, text.encode())


def test_texts_that_would_steer_a_terminal_are_escaped():
    votes = [VOTE | {"where": "\x1b[2J"}]
    text = written(host="a\x1b[2J\nerror: all is lost", reason="\u202eback\x9b", address="1\0", votes=votes)
    member = decode(Member, text)
    assert (member.host, member.reason, member.address, member.votes[0].where) == (
        r"a\x1b[2J\nerror: all is lost",
        r"\u202eback\x9b",
        r"1\x00",
        r"\x1b[2J",
    )
    with pytest.raises(ValueError, match="not a Member") as raised:
        decode(Member, written(host="\x1b[2J", nproc=-1))
    assert str(raised.value).isprintable()


def test_reasons_that_quote_what_is_no_text_are_told():
    """As of a path whose bytes are no UTF-8."""
    told = replace(MEMBER, reason="no file 'a\udcff'", keeps=Assignment(3, host="h\ud800"))
    member = decode(Member, encode(told))
    assert (member.reason, member.keeps) == (r"no file 'a\udcff'", Assignment(3, host=r"h\ud800"))


def test_long_reasons_are_cut_and_not_refused():
    """Or all nodes would go on in a round of which a leader says with the longest reason that it is over."""
    reason = decode(Member, encode(replace(MEMBER, reason="\u00fc" * 16384))).reason
    told = decode(Round, encode(Round(3, "over", 2, f"{MEMBER.name} {reason}")))
    assert len(told.reason) == 16384
    assert (told.reason[:8], told.reason[-4:], told.number) == ("host-a (", "\u00fc...", 3)
    assert len(decode(Member, written(reason="\n" * 5000)).reason) < 1100


def test_keys_of_strangers_cost_no_more_than_a_line(caplog: pytest.LogCaptureFixture) -> None:
    digits = "9" * 5000  # which int() refuses
    names = ("", "\0", "a/b", "x" * 7000, digits, "²", "-1", "🙂", "7")
    held = [KeyValue(f"{keys.RESTARTS}{name}", b"\xff", 1) for name in names]
    assert keys.restarts_of(held) == {7: "\ufffd"}
    with caplog.at_level(logging.WARNING):
        held = [KeyValue(f"{keys.MEMBERS}{name}", b"null", 1) for name in names]
        assert list(keys.readable(Member, [*held, KeyValue("members/id", encode(MEMBER), 2)])) == [MEMBER]
    assert len(caplog.records) == len(names)
    assert keys.MEMBERS + "a/b" in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 400


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


def test_all_nodes_of_the_round_by_rank_and_of_many_the_first(caplog) -> None:
    others = [place(0, 5, round_=2), Assignment(ROUND, left_out="it is late")]
    line, rows = logged([place(1, 2), place(0, 2), *others], caplog)
    assert line == "round 3, 2 nodes: 0 host0, 1 host1"
    assert rows == ["     0  host0 (pid 100)  10.0.0.0  8 worker(s)", "     1  host1 (pid 101)  10.0.0.1  8 worker(s)"]
    caplog.clear()
    line, (*rows, more) = logged([place(rank, 1000) for rank in reversed(range(1000))], caplog)
    assert [row.split()[0] for row in rows] == [str(rank) for rank in range(64)]
    assert more == "  ... and 936 more"
