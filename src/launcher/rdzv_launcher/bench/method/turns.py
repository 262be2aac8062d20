"""The order of a comparison: targets take turns, each time another one first, after one run that does not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rdzv_launcher.bench.method.progress import Progress

Sample = TypeVar("Sample")


class DidNotFinish(Exception):
    """A result, not a fault of the benchmark: a target took longer than its limit, or gave up. The text says so."""


@dataclass
class Turns(Generic[Sample]):
    """The outcome: the samples of each target in the order of its runs, so that equal positions belong to one turn."""

    samples: dict[str, list[Sample]]
    unfinished: dict[str, str] = field(default_factory=dict)
    """Why a target was not measured, or not as often as the others."""


def take_turns(
    case: str,
    targets: Sequence[str],
    measure: Callable[[str, int], Sample],
    *,
    repeats: int,
    progress: Progress,
    warm_up: bool = True,
    given_up: dict[str, str] | None = None,
    once: Callable[[Sample], bool] = lambda sample: False,
) -> Turns[Sample]:
    """Run ``measure(target, turn)`` for every target in ``repeats`` turns; turn -1 is the warm-up and not kept.

    ``measure`` raises ``DidNotFinish`` for what counts as a result; its target is not run again, here or later with the
    same ``given_up``, which maps targets to reasons and is added to. Any other exception ends the benchmark. A target
    for whose sample ``once`` is true is not run again in this case: it takes too long.
    """
    given_up = {} if given_up is None else given_up
    turns: Turns[Sample] = Turns({target: [] for target in targets})
    enough: set[str] = set()
    for turn in range(-1 if warm_up else 0, repeats):
        for target in in_turn(targets, turn):
            if target in given_up:
                turns.unfinished.setdefault(target, given_up[target])
            elif target not in enough:
                progress.step(case, target, turn, repeats)
                try:
                    sample = measure(target, turn)
                except DidNotFinish as error:
                    given_up[target] = f"{error} ({case})"
                    turns.unfinished[target] = str(error)
                    continue
                if turn >= 0:
                    turns.samples[target].append(sample)
                    if once(sample):
                        enough.add(target)
    return turns


def in_turn(targets: Sequence[str], turn: int) -> list[str]:
    """The order of one turn: each begins with another target, and every other one goes backwards."""
    if not targets:
        return []
    first = (turn // 2) % len(targets)
    order = [*targets[first:], *targets[:first]]
    return order if turn % 2 == 0 else order[::-1]
