"""Where the nodes of a domain get their ranks: side by side, and where they were before if possible.

Domains that were in the last round keep their order. A new one fills the gap of one that has gone if it fits there;
otherwise it comes after the others. No clock, no sockets; d domains take O(d log d) steps, and d² only if new ones fit
in no gap.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence


def lay_out(
    sizes: Mapping[str, int], starts: Mapping[str, int], coming: Sequence[str], free: Sequence[int]
) -> dict[str, list[int]]:
    """The ranks of each domain.

    ``sizes``: how many ranks each needs. ``starts``: where the ranks begin of those that have a place already.
    ``coming``: the others, in order. ``free``: the available ranks in ascending order, as many as are needed.
    """
    held = sorted((name for name in sizes if name in starts), key=lambda name: -starts[name])  # the next one last
    new = list(coming)
    ranks: dict[str, list[int]] = {}
    at = 0
    while held or new:
        begins = starts[held[-1]] if held else math.inf
        gap = bisect.bisect_left(free, begins, at) - at
        fits = next((each for each, name in enumerate(new) if sizes[name] <= gap), None) if gap else None
        name = held.pop() if fits is None else new.pop(fits)
        ranks[name] = list(free[at : at + sizes[name]])
        at += sizes[name]
    return ranks
