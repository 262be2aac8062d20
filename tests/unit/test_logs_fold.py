"""What several workers print alike is shown once: no line is lost, none overtakes another one of its worker's."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdzv_launcher.run.workers.output.console import WINDOW_S, Fold


class Screen:
    """A fold with a clock of its own, and what it has shown."""

    def __init__(self, ranks: int) -> None:
        self.now, self.text = 100.0, ""
        self.fold = Fold({rank: f"host:{rank} " for rank in range(ranks)}, self._write, lambda: self.now)

    def _write(self, text: str) -> None:
        self.text += text

    def take(self, rank: int, *lines: str) -> None:
        self.fold.take(rank, [f"{line}\n" for line in lines])

    def shown(self, *, final: bool = False) -> list[str]:
        """What is shown by now, and was not before."""
        self.fold.show(final=final)
        text, self.text = self.text, ""
        return text.splitlines()


def unfolded(lines: list[str]) -> dict[int, list[str]]:
    """Each worker's own lines."""
    found: dict[int, list[str]] = defaultdict(list)
    for line in lines:
        one = re.fullmatch(r"host:(\d+) (.*)", line)
        many = re.fullmatch(r"\[ranks ([\d, -]+)\] (.*)", line)
        assert one or many, line
        ranks, text = (one[1], one[2]) if one else (many[1], many[2])  # type: ignore[index]
        for part in ranks.split(", "):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                found[rank].append(text)
    return found


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 3), st.lists(st.sampled_from("abc"), min_size=1, max_size=5)),
        st.floats(0, 2 * WINDOW_S),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS)
def test_nothing_is_lost_and_the_order_of_each_worker_is_kept(actions) -> None:
    screen, said, shown = Screen(4), defaultdict(list), list[str]()
    for action in actions:
        if isinstance(action, float):
            screen.now += action
        else:
            screen.take(action[0], *action[1])
            said[action[0]] += action[1]
        shown += screen.shown()
        if isinstance(action, float) and action >= WINDOW_S:
            assert unfolded(shown) == said, "nothing waits for longer"
    shown += screen.shown(final=True)
    assert unfolded(shown) == said


def test_what_all_print_is_shown_at_once_and_once() -> None:
    screen = Screen(8)
    for rank in range(8):
        assert screen.shown() == []
        screen.take(rank, "epoch 1", "epoch 2")
    assert screen.shown() == ["[ranks 0-7] epoch 1", "[ranks 0-7] epoch 2"]


def test_ranks_that_a_plugin_has_given_twice_are_text_and_nothing_else() -> None:
    shown = list[str]()
    fold = Fold({0: "a ", 1: "b ", 2: "c "}, shown.append, ranks={0: 7, 1: 7, 2: 9})
    for local_rank in range(3):
        fold.take(local_rank, ["alike\n", f"{local_rank}\n"])
    fold.show(final=True)
    assert "".join(shown) == "[ranks 7, 9] alike\na 0\nb 1\nc 2\n"


def test_a_lone_line_waits_for_a_moment_and_no_longer() -> None:
    screen = Screen(3)
    screen.take(1, "alone")
    assert screen.fold.show() == pytest.approx(WINDOW_S)
    screen.now += WINDOW_S
    assert screen.shown() == ["host:1 alone"]
    assert screen.fold.show() is None
    screen.take(2, "two of three")
    screen.take(0, "two of three")
    screen.now += WINDOW_S
    assert screen.shown() == ["[ranks 0, 2] two of three"]


def test_who_has_other_lines_before_it_shows_these_first() -> None:
    screen = Screen(3)
    screen.take(1, "epoch 1")
    screen.now += WINDOW_S / 2
    screen.take(0, "saved", "best so far", "epoch 1")
    screen.take(2, "epoch 1")
    screen.now += WINDOW_S
    assert screen.shown() == ["host:0 saved", "host:0 best so far", "[ranks 0-2] epoch 1"]


def test_a_crowd_of_lines_waits_for_nobody() -> None:
    screen = Screen(2)
    screen.take(0, *map(str, range(30_000)))
    assert len(screen.shown()) == 30_000
