"""Foreign text on its way to people: it steers no terminal, and passes for no line of ours."""

from __future__ import annotations

import json
import logging

import pytest

from rdzv_launcher import console
from rdzv_launcher.run.workers.failures import failure_summary
from rdzv_plugins.errors import RendezvousFailed
from rdzv_plugins.interfaces import Failure, Outcome
from rdzv_plugins.plain_text import name_of, printable, printable_lines, some
from rdzv_plugins.rounds.ends import parse_failure, parse_outcome, to_json

NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2028\x85\r\b\x7f\udcff"
ESCAPED = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2028\x85\r\x08\x7f\udcff"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain host-7, größe 漢字 🙂", "plain host-7, größe 漢字 🙂"),
        (NASTY, ESCAPED),
        ("two\nlines\tand a tab", r"two\nlines\tand a tab"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("x" * 1500, "x" * 1000 + "... (500 more)"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown


def test_no_character_survives_that_a_terminal_would_act_upon():
    """Beyond the planes in use, and the tags, nearly all are unassigned or private."""
    beyond = (*range(0x20000, 0xE0000, 61), *range(0xE0000, 0xE1000), *range(0xE1000, 0x110000, 61))
    every = "".join(map(chr, (*range(0x20000), *beyond)))
    assert printable(every, len(every) * 10).isprintable()


def test_lines_after_the_first_are_indented_and_of_many_names_the_first_are_said():
    assert printable_lines("one\ntwo\n  three\n\nfour\x1b[2J") == "one\n  two\n  three\n\n  four\\x1b[2J"
    assert some([]) == ""
    assert some(f"h{n}" for n in range(8)) == "h0, h1, h2, h3, h4, h5, h6, h7"
    assert some(f"h{n}" for n in range(10)).endswith("h7 and 2 more")
    assert some(["a", "b"], 3, of=9) == "a, b and 7 more"
    assert some(["a", "b"], 1, of=2) == "a and 1 more"


def test_errors_of_the_commands(capfd):
    assert console.report("rdzv-run", RendezvousFailed(f"a{NASTY}", remedy=f"b{NASTY}"), verbose=True) == 76
    shown = capfd.readouterr().err
    assert shown.endswith(f"rdzv-run: error: a{ESCAPED}\nrdzv-run: b{ESCAPED}\n")
    assert "Traceback" not in shown
    assert shown.replace("\n", "").isprintable()


def test_failure_of_another_node_is_read_without_harm():
    failure = Failure(1, f"host{NASTY}\n", 3, 0, 7, 9, ("\x1b[31mred\x1b[0m", f"{NASTY}\n  first failure: rank 7"))
    outcome = parse_outcome(to_json(Outcome("failed", f"why{NASTY}\n", failure)))
    assert outcome.reason == rf"why{ESCAPED}\n"
    assert outcome.failure is not None
    text = failure_summary(outcome.failure, (), node_rank=0, restarts="")
    assert text.replace("\n", "").isprintable()
    assert "  | red\n" in text
    assert text.count("\n  first failure: ") == 1


def test_what_is_no_failure_or_outcome():
    numbers = [("exit_code", 256), ("exit_code", -500), ("exit_code", "9"), ("node_rank", -5), ("pid", None)]
    for name, value in (*numbers, ("stderr", "line"), ("stderr", None)):
        with pytest.raises(ValueError, match="not a failure: its "):
            parse_failure(json.dumps({**vars(Failure(1, "h", 3, 0, 7, 9)), name: value}))
    for text in ("3", "[]", "{}", '{"end": "won", "reason": ""}', "[" * 100000):
        with pytest.raises(ValueError, match=r"not an outcome: "):
            parse_outcome(text)


def test_a_key_that_is_not_text_costs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert [name_of(key) for key in (b"members/\xf0\x9f\x99\x82", b"", b"\0")] == ["members/🙂", "", "\0"]
        assert caplog.records == []
        for key in (b"members/\x94\x1b", b"members/\x94\x1b", b"\xed\xa0\x80", b"\xff" * 8192):
            assert name_of(key) is None
    assert len(caplog.records) == 3
    assert r"members/\x94\x1b" in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 500
