"""Which of the waiting nodes are in a round: how many there may be, and from which domains.

A round has a multiple of ``node_unit`` nodes, and of each domain none or at least ``min_per_domain``. It is the largest
that can be formed from the waiting nodes. Those that were in the last round come first, then those that replace a
missing node of their own domain, then those that arrived first.

No clock, no sockets; n nodes in d domains take O(n + d²) steps at most, and O(n) if domains have no minimum.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.ranks import Former


@dataclass(frozen=True)
class Shape:
    """What a round may look like."""

    most: int
    """The most nodes in a round."""
    unit: int = 1
    """The number of nodes is a multiple of this."""
    per_domain: int = 1
    """The fewest nodes of a domain, if it has any in the round."""

    @property
    def is_free(self) -> bool:
        """Whether any number of nodes will do, from any domains."""
        return self.unit == self.per_domain == 1


def largest(domains: Iterable[int], shape: Shape) -> int:
    """The size of the largest round that domains with these numbers of nodes can form; 0 if there is none."""
    sizes = sorted((size for size in domains if size >= shape.per_domain), reverse=True)
    reach = list(itertools.accumulate(sizes))  # how many nodes the 1, 2, ... largest have
    size = min(reach[-1] if reach else 0, shape.most)
    size -= size % shape.unit
    while size and (bisect.bisect_left(reach, size) + 1) * shape.per_domain > size:
        size -= shape.unit
    return size


def size_of(waiting: Iterable[Member], former: Former, shape: Shape) -> int:
    """How many nodes ``choose`` would return."""
    return largest(Counter(member.domain for member in _by_preference(waiting, former)).values(), shape)


def choose(waiting: Iterable[Member], former: Former, shape: Shape) -> list[Member]:
    """Choose the nodes of a round from those that wait, given in order of arrival; one for each given rank.

    Those of the previous round come first: a spare does not push out a node that was there.
    """
    preferred = _by_preference(waiting, former)
    domains = Counter(member.domain for member in preferred)
    size = largest(domains.values(), shape)
    chosen = preferred[:size]
    there = Counter(member.domain for member in chosen)
    if all(count >= shape.per_domain for count in there.values()):
        return chosen
    return _of_domains(preferred, _domains(domains, there, size, shape.per_domain), size, shape.per_domain)


def why_spare(member: Member, domains: Mapping[str, int], working: int, shape: Shape) -> str:
    """Why a round of ``working`` nodes goes on without ``member``. ``domains``: how many nodes live in each."""
    if domains[member.domain] < shape.per_domain:
        return f"{in_words(member.domain)} has fewer than {shape.per_domain} nodes here (min_per_domain)"
    if working >= shape.most:
        return f"all {shape.most} places are taken"
    unit = f"a multiple of {shape.unit} nodes (node_unit)" if shape.unit > 1 else ""
    least = f"at least {shape.per_domain} nodes of a domain (min_per_domain)" if shape.per_domain > 1 else ""
    return f"a round has {' and '.join(filter(None, (unit, least)))}, and those that are here are too few for a larger"


def in_words(domain: str) -> str:
    """The name used for a domain in messages."""
    return f"domain {domain}" if domain else "no domain"


def _by_preference(waiting: Iterable[Member], former: Former) -> list[Member]:
    """Order the waiting nodes by preference, one for each given rank."""
    stay: list[Member] = []
    come: list[Member] = []
    for member in waiting:
        (come if former.own(member) is None else stay).append(member)
    claimed: set[int] = set()
    missing = Counter(former.domains)
    missing.subtract(member.domain for member in stay)
    kinds: tuple[list[Member], list[Member]] = ([], [])  # those that replace one of their domain, and the rest
    chosen: list[Member] = []
    for member in (*stay, *come):
        if member.node_rank is not None:
            if member.node_rank in claimed:
                continue
            claimed.add(member.node_rank)
        if former.own(member) is not None:
            chosen.append(member)
        else:
            kinds[missing[member.domain] <= 0].append(member)
            missing[member.domain] -= 1
    return [*chosen, *kinds[0], *kinds[1]]


def _domains(sizes: Mapping[str, int], there: Mapping[str, int], size: int, least: int) -> Collection[str]:
    """Domains that make up a round of ``size`` nodes with ``least`` of each: the preferred ones, if possible.

    ``there``: how many of each are among the preferred nodes. Such domains are known to exist.
    """
    preferred = sorted((name for name in sizes if sizes[name] >= least), key=lambda name: -there.get(name, 0))  # stable
    others = sorted(sizes[name] for name in preferred)
    taken: set[str] = set()
    have = 0
    for name in preferred:
        del others[bisect.bisect_left(others, sizes[name])]
        if have >= size and there.get(name, 0) < least:
            break
        more = _fewest(others, size - have - sizes[name])
        if (len(taken) + 1 + more) * least <= size:
            taken.add(name)
            have += sizes[name]
    return taken


def _fewest(sizes: Sequence[int], wanted: int) -> float:
    """The fewest domains, given by their sizes in ascending order, that have ``wanted`` nodes."""
    for count, size in enumerate(reversed(sizes)):
        if wanted <= 0:
            return count
        wanted -= size
    return len(sizes) if wanted <= 0 else math.inf


def _of_domains(preferred: Sequence[Member], domains: Collection[str], size: int, least: int) -> list[Member]:
    """The preferred nodes, with ``least`` of each of the ``domains``, and none of any other."""
    lacking = dict.fromkeys(domains, least)
    kept: set[str] = set()
    others: list[str] = []
    for member in preferred:
        if lacking.get(member.domain, 0) > 0:
            lacking[member.domain] -= 1
            kept.add(member.node_id)
        elif member.domain in lacking:
            others.append(member.node_id)
    kept.update(others[: size - len(kept)])
    return [member for member in preferred if member.node_id in kept]
