"""Who measures the way to whom: every pair is dialled, and some pairs are tested, in O(log n) phases.

Nodes are numbers from 0. In a pair, the node with the lower number dials, so no two nodes wait for each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable

Pair = tuple[int, int]
"""Two nodes, the lower number first."""

_FARTHEST = 64
"""With more than twice as many nodes, not every pair is dialled: each dials this many, and is dialled by as many."""
_FEWEST_PHASES = 3


def dialled(count: int) -> set[Pair]:
    """The pairs between which a connection is tried: all of them, up to 129 nodes."""
    farthest = min(count // 2, _FARTHEST)
    return {_pair(node, (node + apart) % count) for apart in range(1, farthest + 1) for node in range(count)}


def phases(count: int, seed: str) -> list[list[Pair]]:
    """Rounds of a tournament: in each, every node meets one other, and no two nodes meet twice.

    About log2(count) of the count - 1 possible ones, chosen by ``seed``: a slow node is slow in all of them, a slow way
    in just one. With an odd number one node pauses in each. Source: the circle method.
    """
    if count < 2:
        return []
    there = count + count % 2  # the last may be nobody
    turns = there - 1
    most = min(turns, max(_FEWEST_PHASES, math.ceil(math.log2(count))))
    chosen = random.Random(seed).sample(range(turns), most)
    found = []
    for turn in chosen:
        pairs = [(turn, there - 1)]
        pairs += [_pair((turn + apart) % turns, (turn - apart) % turns) for apart in range(1, there // 2)]
        found.append([pair for pair in pairs if pair[1] < count])
    return found


def in_turns(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """The same pairs in (about) as few phases as possible, in none of which a node has two partners."""
    found: list[tuple[set[int], list[Pair]]] = []
    for pair in sorted(set(pairs)):
        for busy, phase in found:
            if not busy.intersection(pair):
                busy.update(pair)
                phase.append(pair)
                break
        else:
            found.append((set(pair), [pair]))
    return [phase for _, phase in found]


def other_partners(node: int, count: int, without: Collection[int], seed: str, most: int) -> list[Pair]:
    """Pairs of ``node`` with up to ``most`` others that are not in ``without``."""
    others = [each for each in range(count) if each != node and each not in without]
    chosen = random.Random(f"{seed} {node}").sample(others, min(most, len(others)))
    return [_pair(node, each) for each in chosen]


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)
