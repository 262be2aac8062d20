"""What nodes say of themselves: JSON that anybody may have written, read without harm."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rdzv_plugins.coordination import KeyValue
from rdzv_plugins.elastic.keys import Assignment, Finishing, Member, Probe, Round, decode, encode, readable

MEMBER = Member("id", "host-a", "boot host-a", 7, "10.0.0.1", "10.0.0.1", 2, node_rank=0, store=(3, "::1", 9))


def written(**fields: object) -> bytes:
    """The member, with fields that no node of ours would write."""
    return json.dumps(json.loads(encode(MEMBER)) | fields).encode()


def test_member_as_it_is_written_can_be_read():
    assert decode(Member, encode(MEMBER)) == MEMBER
    assert decode(Member, encode(dataclasses.replace(MEMBER, node_rank=None, nproc=0))).node_rank is None
    keeper = dataclasses.replace(MEMBER, after=2, keeps=Assignment(3, 0, 2, "id", host="host-a", master_port=9))
    assert decode(Member, encode(keeper)) == keeper
    assert keeper.kept == keeper.keeps
    assert dataclasses.replace(keeper, after=3).kept is None, "it has left that round"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"node_rank": -5}, "its node_rank is -5"),
        ({"node_rank": 2**31}, "its node_rank is 2147483648"),
        ({"node_rank": True}, "its node_rank is True"),
        ({"node_rank": 1.0}, "its node_rank is 1.0"),
        ({"nproc": -1}, "its nproc is -1"),
        ({"nproc": 10**9}, "its nproc is 1000000000"),
        ({"after": -1}, "its after is -1"),
        ({"probe": 2**60}, "its probe is "),
        ({"leaving": "soon"}, "its leaving is 'soon'"),
        ({"leaving": []}, r"its leaving is \[\]"),
        ({"store": [3, "::1", 65536]}, r"its store is \(3, '::1', 65536\)"),
        ({"store": [3, "::1", 0]}, "its store is "),
        ({"store": [3, "::1"]}, "its store is "),
        ({"store": "abc"}, "its store is "),
        ({"store": 5}, "not a Member"),
        ({"host": "h" * 600}, "its host is 'hhh"),
        ({"address": None}, "its address is None"),
        ({"what": 1}, "nothing is known of 'what'"),
        ({"keeps": {"round": 3, "rank": -5}}, "not a Assignment: its rank is -5"),
        ({"keeps": {"round": 3, "what": 1}}, "nothing is known of 'what'"),
        ({"keeps": {"round": 3, "keeps": {"round": 3}}}, "nothing is known of 'keeps'"),
        ({"keeps": 5}, "not a Assignment"),
        ({"keeps": []}, r"its keeps is \[\]"),
    ],
)
def test_nonsense_is_not_read_and_named(fields, said):
    with pytest.raises(ValueError, match=said) as raised:
        decode(Member, written(**fields))
    assert "pid 7" in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Assignment, '{"round": 1, "rank": -2}'),
        (Assignment, '{"round": 1, "master_port": 70000}'),
        (Round, '{"number": -1}'),
        (Round, '{"state": "lovely"}'),
        (Probe, '{"number": "1"}'),
        (Finishing, '{"by": 1}'),
        (Finishing, '{"by": "' + "x" * 600 + '"}'),
    ],
)
def test_nonsense_of_other_kinds(kind, text):
    with pytest.raises(ValueError, match=f"not a {kind.__name__}: its "):
        decode(kind, text.encode())


def test_texts_that_would_steer_a_terminal_are_escaped():
    member = decode(Member, written(host="a\x1b[2J\nerror: all is lost", reason="\u202eback\x9b", address="1\0"))
    assert (member.host, member.reason, member.address) == (
        r"a\x1b[2J\nerror: all is lost",
        r"\u202eback\x9b",
        r"1\x00",
    )
    with pytest.raises(ValueError, match="not a Member") as raised:
        decode(Member, written(host="\x1b[2J", nproc=-1))
    assert str(raised.value).isprintable()


def test_long_reasons_are_cut_and_not_refused():
    member = decode(Member, written(reason="\n" * 5000))
    assert len(member.reason) < 1100


def test_readable_leaves_out_what_is_not(caplog):
    held = [KeyValue("members/b", b"what?\x1b", 1), KeyValue("members/id", encode(MEMBER), 2)]
    assert list(readable(Member, held)) == [MEMBER]
    assert "cannot read key 'members/b' of the rendezvous: not a Member" in caplog.text
