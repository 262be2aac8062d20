"""--preflight, as the leader has it: whom a round is formed without, given what nodes found about themselves.

A node is *broken* if it says so. It is *slow* if a value that it reports is below the median of at least three nodes by
more than a factor. Slow or broken nodes are left out while the others are enough, broken ones first; a broken one that
cannot be done without fails the round. No clock, no sockets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rdzv_plugins.elastic.coordinator.gates import (
    Gate,
    GateEvent,
    MemberGone,
    MemberHeard,
    PatienceEnded,
    Proposal,
    RoundDeclared,
)
from rdzv_plugins.elastic.keys import CheckReport, Member
from rdzv_plugins.plain_text import some

_COMPARED = 3  # how many nodes there have to be before one can be told from the others


@dataclass(frozen=True)
class Judgement:
    """What follows from the checks of the nodes that wait for a round."""

    left_out: Mapping[str, str] = field(default_factory=dict)
    """The nodes that the round is formed without, by their ids, and why, in words that name them."""
    words: tuple[str, ...] = ()  # what people should know about those that stay in
    fatal: str = ""  # why there can be no round


class _Fault(NamedTuple):
    broken: bool
    member: Member
    why: str

    def __str__(self) -> str:
        return f"{self.member.name} {self.why}"


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

    def observe(self, event: GateEvent, now: float) -> bool:
        match event:
            case MemberHeard(member) if member.checked >= self._declared:
                self._to_retest.discard(member.node_id)
            case MemberGone(member):
                self._to_retest.discard(member.node_id)
            case PatienceEnded():
                self._to_retest.clear()
            case RoundDeclared(round_):
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
    kept: list[_Fault] = []
    fatal: list[_Fault] = []
    for fault in [*_broken(members), *_slow(members, factor)]:
        node = fault.member.node_id
        if node in left_out:
            continue
        if len(left_out) < spares:
            left_out[node] = f"{fault}; it is left out until the round is over"
        else:
            (fatal if fault.broken else kept).append(fault)
    words = [f"{fault}; there is no spare for it" for fault in kept]
    return Judgement(left_out, (*words, *_warnings(members)), "; ".join(map(str, fatal)))


def _broken(members: Iterable[Member]) -> list[_Fault]:
    return [
        _Fault(True, member, f"{check.name} is broken: {check.text}")
        for member in members
        for check in member.checks
        if check.verdict == "broken"
    ]


def _slow(members: Iterable[Member], factor: float) -> list[_Fault]:
    by_name: dict[str, list[tuple[Member, CheckReport, float]]] = {}
    for member in members:
        for check in member.checks:
            if check.value is not None:
                by_name.setdefault(check.name, []).append((member, check, check.value))
    return [
        _Fault(False, member, f"is slow: {what} {value:.3g}{_unit(check)}, where {usual:.3g} is usual here")
        for what, found in by_name.items()
        if (usual := _usual([value for _, _, value in found])) is not None
        for member, check, value in found
        if value * factor < usual
    ]


def _usual(values: Sequence[float]) -> float | None:
    """The median; None if there are too few values."""
    import statistics  # slow to import, and needed only with --preflight

    return statistics.median(values) if len(values) >= _COMPARED else None


def _unit(check: CheckReport) -> str:
    return f" {check.unit}".rstrip()


def _warnings(members: Iterable[Member]) -> list[str]:
    warned: dict[str, list[str]] = {}
    for member in members:
        for check in member.checks:
            if check.verdict == "warning":
                warned.setdefault(check.name, []).append(f"{member.name}: {check.text}")
    return [f"{what}: {some(texts, 2)}" for what, texts in warned.items()]
