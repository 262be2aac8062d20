"""What is wrong with which node, or with the way between which two, given everyone's measurements. Pure functions.

A node is *broken* if it says so about itself, or has no way to several others; a pair is broken if there is no way
between the two. What is worse than usual in this job by a factor is slow. The usual value is the median over the nodes
of the best that each has seen: so a node that is slow in everything it does counts once, and so does one that claims
wonders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from rdzv_plugins.elastic.leading.trial.schedule import Pair
from rdzv_plugins.elastic.trial_keys import Checked, Way

T = TypeVar("T")
Kind = Literal["broken", "slow", "uneven"]
_NOTICEABLE_US = 5000
"""A latency that exceeds the usual one by less than this is not slow, whatever the factor: processors can be busy."""
_NOTICEABLE_OF_SERVICE_US = 100_000
"""The same for answers of the service, which waits for processors, too."""
_FAST = 1024.0 * 2**20
"""Bytes per second. Anything faster says more about the processors of both nodes than about the way between them."""
_COMPARED = 3
"""How many nodes there have to be before one can be told from the others."""
_MIB = 2**20


@dataclass
class Measured:
    """Everything that was measured in a trial. Nodes are numbers from 0."""

    count: int
    ways: dict[Pair, Way] = field(default_factory=dict)
    service_us: dict[int, int] = field(default_factory=dict)
    checks: dict[int, Sequence[Checked]] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """Why a node could not measure."""

    def add(self, pair: Pair, way: Way) -> None:
        """Take in what was measured of a pair, perhaps for the second time: the better value counts, part by part."""
        known = self.ways.get(pair)
        if known is None:
            self.ways[pair] = way
            return
        latencies = [each.latency_us for each in (known, way) if each.latency_us]
        self.ways[pair] = Way(
            way.to,
            min(latencies, default=0),
            max(known.rate, way.rate),
            max(known.gloo_rate, way.gloo_rate),
            way.problem and known.problem and way.problem,
        )

    def without(self, out: Collection[int]) -> Measured:
        """Return the same measurements without those that concern these nodes."""
        return Measured(
            self.count,
            {pair: way for pair, way in self.ways.items() if pair[0] not in out and pair[1] not in out},
            _less(self.service_us, out),
            _less(self.checks, out),
            _less(self.problems, out),
        )


def _less(values: Mapping[int, T], out: Collection[int]) -> dict[int, T]:
    return {node: value for node, value in values.items() if node not in out}


@dataclass(frozen=True)
class Fault:
    """What is wrong with one node or with the way between two.

    ``uneven``: worth mentioning, and nobody's fault.
    """

    kind: Kind
    nodes: tuple[int, ...]
    why: str
    """What is wrong, in words that follow the names: ``is slow: ...``."""
    measured: bool = False
    """Whether it follows from what was measured between nodes: a new measurement may give another result."""


def judge(measured: Measured, factor: float, name: Callable[[int], str]) -> list[Fault]:
    """The faults, the worst first. ``factor``: how much slower than usual is slow. ``name``: returns a node's name."""
    faults = [Fault("broken", (node,), f"cannot measure: {why}") for node, why in measured.problems.items()]
    faults += _of_themselves(measured)
    broken = {node for fault in faults for node in fault.nodes}
    faults += _without_a_way(measured, broken, name)
    broken = {node for fault in faults for node in fault.nodes}
    faults += _by_values(measured, factor)
    faults += _by_service(measured, factor)
    good = {pair: way for pair, way in measured.ways.items() if not way.problem and not broken.intersection(pair)}
    for metric in _METRICS:
        faults += metric.slow(good, factor, name)
    return sorted(faults, key=lambda fault: _ORDER.index(fault.kind))  # sorting is stable


_ORDER: tuple[Kind, ...] = ("broken", "slow", "uneven")


def _of_themselves(measured: Measured) -> list[Fault]:
    return [
        Fault("broken", (node,), f"{check.name} is broken: {check.text}")
        for node, checks in measured.checks.items()
        for check in checks
        if check.verdict == "broken"
    ]


def _without_a_way(measured: Measured, known: set[int], name: Callable[[int], str]) -> list[Fault]:
    """The nodes or pairs that explain all the connections that fail: a node, if it explains several."""
    cut = {pair: way.problem for pair, way in measured.ways.items() if way.problem and not known.intersection(pair)}
    faults = []
    for node, pairs in _explained(cut):
        (one, other) = pairs[0]
        if node is None:
            why = f"have no way to each other: {cut[one, other]}"
            faults.append(Fault("broken", (one, other), why, measured=True))
            continue
        dialled = sum(node in pair and not known.intersection(pair) for pair in measured.ways)
        example = name(other if one == node else one)
        why = f"has no way to {len(pairs)} of {dialled} other nodes, as {example}: {cut[one, other]}"
        faults.append(Fault("broken", (node,), why, measured=True))
    return faults


def _explained(pairs: Iterable[Pair]) -> list[tuple[int | None, list[Pair]]]:
    """The fewest nodes (or about that), each with the pairs that it explains; None for a pair that stands alone."""
    left, found = set(pairs), []
    while left:
        counts = Counter(node for pair in left for node in pair)
        most = max(counts.values())
        # if there are several, the one that came last: the first may serve the endpoint
        node = max(each for each, count in counts.items() if count == most)
        own = sorted(pair for pair in left if node in pair)
        found.append((node if most > 1 else None, own))
        left.difference_update(own)
    return found


def _by_values(measured: Measured, factor: float) -> list[Fault]:
    """Faults in what nodes have measured of themselves, each by its name."""
    by_name: dict[str, dict[int, Checked]] = {}
    for node, checks in measured.checks.items():
        for check in checks:
            if check.value is not None:
                by_name.setdefault(check.name, {})[node] = check
    faults = []
    for what, found in by_name.items():
        values = {node: check.value or 0.0 for node, check in found.items()}
        usual = _usual(values.values())
        for node, value in values.items():
            if usual is not None and value * factor < usual:
                unit = f" {found[node].unit}".rstrip()
                why = f"is slow: {what} {value:.3g}{unit}, where {usual:.3g} is usual here"
                faults.append(Fault("slow", (node,), why))
    return faults


def _by_service(measured: Measured, factor: float) -> list[Fault]:
    usual = _usual(measured.service_us.values())
    return [
        Fault("slow", (node,), f"is slow: the rendezvous answers it after {_ms(us)}, where {_ms(usual)} is usual here")
        for node, us in measured.service_us.items()
        if usual is not None and us > factor * usual + _NOTICEABLE_OF_SERVICE_US
    ]


@dataclass(frozen=True)
class _Metric:
    """Something that was measured of ways."""

    what: str
    of: Callable[[Way], float]
    show: Callable[[float], str]
    best: Callable[[Iterable[float]], float]
    is_slow: Callable[[float, float, float], bool]
    """Called with the value, what is usual, and the factor."""
    enough: float | None = None
    """If more is better: anything above this counts as this."""

    def slow(self, ways: Mapping[Pair, Way], factor: float, name: Callable[[int], str]) -> list[Fault]:
        """The nodes that are slow on all their ways, then the other pairs that are slow."""
        values = {pair: value for pair, way in ways.items() if (value := self.of(way))}
        by_node: dict[int, list[float]] = {}
        for pair, value in values.items():
            for node in pair:
                by_node.setdefault(node, []).append(value)
        bests = {node: self.best(found) for node, found in by_node.items()}
        usual = _usual(bests.values())
        if usual is None:
            return []
        if self.enough is not None:
            usual = min(usual, self.enough)
        nodes = {node for node, best in bests.items() if self.is_slow(best, usual, factor)}
        faults = [self._of_node(node, bests[node], usual) for node in sorted(nodes)]
        rest = {
            pair: value
            for pair, value in values.items()
            if self.is_slow(value, usual, factor) and not nodes.intersection(pair)
        }
        explained = _explained(rest)
        if len(explained) > _few(len(by_node)):
            one, other = min(rest)
            text = (
                f"{self.what} differs between nodes: {self.show(rest[one, other])} and the like on {len(rest)} ways, "
            )
            text += f"as from {name(one)} to {name(other)}, where {self.show(usual)} is usual here"
            return [*faults, Fault("uneven", (), text, measured=True)]
        for culprit, pairs in explained:
            if culprit is not None:
                faults.append(self._of_node(culprit, self.best(rest[pair] for pair in pairs), usual))
                continue
            shown = self.show(rest[pairs[0]])
            why = f"are slow with each other: {self.what} {shown}, where {self.show(usual)} is usual here"
            faults.append(Fault("slow", pairs[0], why, measured=True))
        return faults

    def _of_node(self, node: int, value: float, usual: float) -> Fault:
        why = f"is slow: {self.what} {self.show(value)}, where {self.show(usual)} is usual here"
        return Fault("slow", (node,), why, measured=True)


def _few(nodes: int) -> int:
    """How many single ways may be slow: if there are more, this is what the network is like."""
    return max(1, nodes // 8)


def _usual(values: Iterable[float]) -> float | None:
    """The median; None if there are too few values."""
    import statistics  # slow to import, and needed only for trials

    known = list(values)
    return statistics.median(known) if len(known) >= _COMPARED else None


def _ms(microseconds: float | None) -> str:
    return f"{(microseconds or 0) / 1000:.1f} ms"


def _rate(value: float) -> str:
    return f"{value / _MIB:.1f} MiB/s"


def _lower(value: float, usual: float, factor: float) -> bool:
    return value * factor < usual


_METRICS = (
    _Metric("throughput", lambda way: way.rate, _rate, max, _lower, _FAST),
    _Metric("throughput of gloo", lambda way: way.gloo_rate, _rate, max, _lower, _FAST),
    _Metric(
        "latency",
        lambda way: way.latency_us,
        _ms,
        min,
        lambda value, usual, factor: value > factor * usual + _NOTICEABLE_US,
    ),
)


@dataclass(frozen=True)
class Consequences:
    """What is done about faults."""

    left_out: dict[int, Fault] = field(default_factory=dict)
    kept: tuple[Fault, ...] = ()
    """Slow nodes and ways that the job has to put up with, and what is uneven."""
    fatal: tuple[Fault, ...] = ()
    """Broken ones for which there is no spare."""


def consequences(faults: Sequence[Fault], spares: int) -> Consequences:
    """Decide which nodes to leave out, at most ``spares``; ``faults`` are in the order of ``judge``.

    Of a pair, it is the node with more faults, or else the one with the higher number.
    """
    of_node = Counter(node for fault in faults if fault.kind != "uneven" for node in fault.nodes)
    left_out: dict[int, Fault] = {}
    kept: list[Fault] = []
    fatal: list[Fault] = []
    for fault in sorted(faults, key=lambda each: (_ORDER.index(each.kind), len(each.nodes))):  # sorting is stable
        if fault.kind == "uneven":
            kept.append(fault)
        elif left_out.keys().isdisjoint(fault.nodes):
            if len(left_out) < spares:
                left_out[max(fault.nodes, key=lambda node: (of_node[node], node))] = fault
            else:
                (fatal if fault.kind == "broken" else kept).append(fault)
    return Consequences(left_out, tuple(kept), tuple(fatal))
