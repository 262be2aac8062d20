"""--preflight, as the leader has it: whom a round is formed without, given what nodes found about themselves.

A node is *broken* if it says so. It is *slow* if a value that it reports is below the median of at least three nodes by
more than a factor. Slow or broken nodes are left out while the others are enough, broken ones first; a broken one that
cannot be done without fails the round. No clock, no sockets.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rdzv_plugins.elastic.coordinator import gates
from rdzv_plugins.elastic.coordinator.gates import Gate, Proposal
from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.plain_text import some

_COMPARED = 3  # how many nodes there have to be before one can be told from the others


@dataclass(frozen=True)
class Judgement:
    """What follows from the checks of the nodes that wait for a round."""

    left_out: Mapping[str, str] = field(default_factory=dict)
    """The nodes that the round is formed without, by their ids, and why, in words that name them."""
    words: tuple[str, ...] = ()  # what people should know about those that stay in
    fatal: str = ""  # why there can be no round


class Preflight(Gate):
    """What the checks of its nodes mean for a round, until it is over."""

    def __init__(self, factor: float, members: Mapping[str, Member]) -> None:
        """``factor``: as for ``judge``. ``members``: those that live; it changes."""
        self._factor, self._members = factor, members
        self._judged = Judgement()
        self._declared = 0
        self._to_retest: set[str] = set()
        """Who was left out of the round that is over, and has not tested itself again."""

    @property
    def awaits(self) -> bool:
        return bool(self._to_retest)

    def observe(self, event: gates.GateEvent, now: float) -> bool:
        match event:
            case gates.MemberHeard(member) if member.checked >= self._declared:
                self._to_retest.discard(member.node_id)
            case gates.MemberGone(member):
                self._to_retest.discard(member.node_id)
            case gates.FormingTimedOut():
                self._to_retest.clear()
            case gates.RoundDeclared(round_):
                self._declared = round_.number
                if round_.state == "over":
                    self._to_retest = {node for node in self._judged.left_out if node in self._members}
                    self._judged = Judgement()
        return False

    def review(self, proposal: Proposal) -> None:
        found, said = judge(proposal.waiting, self._factor, proposal.spares), self._judged
        known = (*said.left_out.values(), *said.words)
        proposal.notices = [word for word in (*found.left_out.values(), *found.words) if word not in known]
        proposal.unfit, proposal.fatal = found.left_out.keys(), found.fatal
        self._judged = found


def judge(members: Collection[Member], factor: float, spares: int) -> Judgement:
    """``factor``: how much worse than usual is slow. ``spares``: how many of ``members`` may be left out."""
    left_out: dict[str, str] = {}
    kept: list[str] = []
    fatal: list[str] = []
    for faults, beyond_spares in ((_broken(members), fatal), (_slow(members, factor), kept)):
        for member, why in faults:
            if member.node_id in left_out:
                continue
            if len(left_out) < spares:
                left_out[member.node_id] = f"{member.name} {why}; it is left out until the round is over"
            else:
                beyond_spares.append(f"{member.name} {why}")
    words = [f"{fault}; there is no spare for it" for fault in kept]
    return Judgement(left_out, (*words, *_warnings(members)), "; ".join(fatal))


def _broken(members: Iterable[Member]) -> Iterator[tuple[Member, str]]:
    for member in members:
        for check in member.checks:
            if check.verdict == "broken":
                yield member, f"{check.name} is broken: {check.text}"


def _slow(members: Iterable[Member], factor: float) -> Iterator[tuple[Member, str]]:
    by_name: dict[str, list[tuple[float, Member, str]]] = {}
    for member in members:
        for check in member.checks:
            if check.value is not None:
                by_name.setdefault(check.name, []).append((check.value, member, f" {check.unit}".rstrip()))
    for name, found in by_name.items():
        usual = statistics.median(value for value, _, _ in found)
        for value, member, unit in found:
            if len(found) >= _COMPARED and value * factor < usual:
                yield member, f"is slow: {name} {value:.3g}{unit}, where {usual:.3g} is usual here"


def _warnings(members: Iterable[Member]) -> list[str]:
    warned: dict[str, list[str]] = {}
    for member in members:
        for check in member.checks:
            if check.verdict == "warning":
                warned.setdefault(check.name, []).append(f"{member.name}: {check.text}")
    return [f"{what}: {some(texts, 2)}" for what, texts in warned.items()]
