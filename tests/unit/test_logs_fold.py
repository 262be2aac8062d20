"""What several workers print alike is shown once: no line is lost, none overtakes another one of its worker's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdzv_launcher.run.workers.output.shown import WINDOW_S, View


class Screen(View):
    """One with a clock of its own, and what it has shown."""

    def __init__(self, prefixes: list[str], ranks: Mapping[int, int] | None = None) -> None:
        self.now, self.text = 100.0, ""
        super().__init__("stdout", dict(enumerate(prefixes)), ranks, fold=True, clock=lambda: self.now)

    def write(self, text: str) -> None:
        self.text += text

    def take_lines(self, rank: int, *lines: str) -> None:
        self.take(rank, [f"{line}\n" for line in lines])

    def shown(self, *, final: bool = False) -> list[str]:
        """What is shown by now, and was not before."""
        self.show(final=final)
        text, self.text = self.text, ""
        return text.splitlines()


def hosts(ranks: int) -> Screen:
    return Screen([f"host:{rank} " for rank in range(ranks)])


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
    screen, said, shown = hosts(4), defaultdict(list), list[str]()
    for action in actions:
        if isinstance(action, float):
            screen.now += action
        else:
            screen.take_lines(action[0], *action[1])
            said[action[0]] += action[1]
        shown += screen.shown()
        if isinstance(action, float) and action >= WINDOW_S:
            assert unfolded(shown) == said, "nothing waits for longer"
    shown += screen.shown(final=True)
    assert unfolded(shown) == said


@pytest.mark.parametrize(
    ("ranks", "does", "shown"),
    [
        # what all print is shown at once, and once
        (3, [(0, "a b"), (1, "a b"), (2, "a b")], ["[ranks 0-2] a", "[ranks 0-2] b"]),
        (3, [(0, "a b"), (1, "a b")], []),
        # a lone line waits for a moment and no longer
        (3, [(1, "alone"), WINDOW_S / 2], []),
        (3, [(1, "alone"), WINDOW_S], ["host:1 alone"]),
        (3, [(2, "two"), (0, "two"), WINDOW_S], ["[ranks 0, 2] two"]),
        # who has other lines before it shows these first
        (3, [(1, "e"), WINDOW_S / 2, (0, "best e"), (2, "e"), WINDOW_S], ["host:0 best", "[ranks 0-2] e"]),
        # a crowd of lines waits for nobody
        (2, [(0, "x " * 30_000)], ["host:0 x"] * 30_000),
    ],
)
def test_what_several_print_alike(ranks: int, does: list[tuple[int, str] | float], shown: list[str]) -> None:
    screen = hosts(ranks)
    for each in does:
        if isinstance(each, float):
            screen.now += each
        else:
            screen.take_lines(each[0], *each[1].split())
    assert screen.shown() == shown


def test_ranks_that_a_plugin_has_given_twice_are_text_and_nothing_else() -> None:
    screen = Screen(["a ", "b ", "c "], {0: 7, 1: 7, 2: 9})
    for local_rank in range(3):
        screen.take_lines(local_rank, "alike", f"{local_rank}")
    assert screen.show() == pytest.approx(WINDOW_S)
    screen.show(final=True)
    assert screen.show() is None
    assert screen.text == "[ranks 7, 9] alike\na 0\nb 1\nc 2\n"
