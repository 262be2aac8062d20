"""Before a round its nodes are tried: a state machine of the leader. No sockets, no clock of its own.

A trial has two stages. In *measure* every node dials others, tests its way to a few (``schedule``), and reports the
results, once. If something is wrong (``verdict``) it is measured again in *confirm*, only by the nodes concerned, while
the rest of the network is quiet: a hiccup is then forgotten. No node is waited for indefinitely: not one that most
others have no way to either, nor one that needs much longer than half of the others.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.trial import schedule
from rdzv_plugins.elastic.leading.trial.schedule import Pair
from rdzv_plugins.elastic.leading.trial.verdict import Consequences, Fault, Measured, consequences, judge
from rdzv_plugins.elastic.liveness.peer import address_for
from rdzv_plugins.elastic.trial_keys import Partner, Stage, Task, Tried, Way
from rdzv_plugins.elastic.trial_rules import TrialRules
from rdzv_plugins.plain_text import some

_STRAGGLE_S = 5.0
"""How many seconds longer than twice the time of half of the nodes one may need, before the others go on without it."""
_CUT_OFF_S = 2.0
"""How long to wait for the last nodes that most others cannot reach, in seconds: they may yet tell the leader why."""
_PARTNERS, _PARTNERS_OF_LATE = 3, 2
"""How many other nodes a node is tested with again; fewer if two things are slow.

A way that answers late is slow in both latency and throughput, and each test takes longer for it.
"""


@dataclass(frozen=True)
class Result:
    """The result of a trial; nodes are given by their ids."""

    unfit: Mapping[str, str] = field(default_factory=dict)
    """Nodes that the round is formed without, and why."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Nodes that did not answer, and what is taken to be the reason."""
    words: tuple[str, ...] = ()
    """What people should know about those that stay in."""
    fatal: str = ""
    """Why there can be no round."""


class Trial:
    """One trial of ``members``, in order of arrival. Not thread-safe."""

    def __init__(self, rules: TrialRules, members: Sequence[Member], now: float) -> None:
        self._rules = rules
        self._members = list(members)
        self._number = {member.node_id: number for number, member in enumerate(members)}
        self._secret = uuid.uuid4().hex
        self._measured = Measured(len(members))
        self._gone: set[int] = set()
        self._silent: dict[int, str] = {}
        self._stage: Stage = "measure"
        self._answers: dict[int, Tried] = {}
        self._half_at: float | None = None
        self._cut_off_at: float | None = None
        self.tasks: dict[str, Task] = {}
        """What is to be sent to nodes; whoever sends it clears this."""
        for number, member in enumerate(members):
            self._measured.checks[number] = member.checks
        self._asked: dict[int, Task] = {}
        self._begin("measure", schedule.dialled(len(members)), self._phases(), now, everybody=True)

    @property
    def nodes(self) -> Collection[str]:
        """The ids of the nodes being tried."""
        return self._number.keys()

    def heard(self, member: Member, now: float) -> None:
        """A member says something, perhaps its answer."""
        number, tried = self._number.get(member.node_id), member.tried
        if number is None or tried is None or number in self._answers or number not in self._asked:
            return
        if tried.trial != self._secret or tried.stage != self._stage:
            return
        self._answers[number] = tried
        if self._half_at is None and 2 * len(self._answers) >= len(self._asked):
            self._half_at = now

    def gone(self, node: str) -> None:
        """A node is lost or has left: it is not waited for."""
        if node in self._number:
            self._gone.add(self._number[node])

    def deadline(self) -> float:
        """When to ask for ``result`` at the latest."""
        times = [self._until]
        if self._half_at is not None:
            times.append(2 * self._half_at - self._began + _STRAGGLE_S)
        if self._cut_off_at is not None:
            times.append(self._cut_off_at)
        return min(times)

    def result(self, now: float, spares: int) -> Result | None:
        """The result once it is known; otherwise None, perhaps with new ``tasks``.

        ``spares``: how many nodes may be left out.
        """
        missing = self._missing()
        if missing and self._cut_off_at is None and self._is_cut_off(missing):
            self._cut_off_at = now + _CUT_OFF_S
        if missing and now < self.deadline():
            return None
        for number in missing:
            self._silent[number] = "it has not answered in its preflight"
        self._take_answers()
        faults = self._faults()
        suspects = [fault for fault in faults if fault.measured]
        if self._stage == "measure" and suspects:
            dials, tests = self._again(suspects)
            if dials or tests:
                self._begin("confirm", dials, schedule.in_turns(tests), now)
                return None
        return self._conclude(consequences(faults, max(0, spares - len(self._silent))))

    def facts(self) -> str:
        """What it waits for, in words for people."""
        names = some(self._members[number].name for number in self._missing())
        what = "tested" if self._stage == "measure" else "tested once more"
        return f"{len(self._asked)} nodes are {what} before the round (--preflight); still to answer: {names or 'none'}"

    def _phases(self) -> list[list[Pair]]:
        """The phases, without pairs on one machine, which say nothing about the network.

        If there is only one machine, they are included.
        """
        found = schedule.phases(len(self._members), self._secret)
        machine = [member.machine for member in self._members]
        if len(set(machine)) == 1:
            return found
        return [[pair for pair in phase if machine[pair[0]] != machine[pair[1]]] for phase in found]

    def _begin(
        self,
        stage: Stage,
        dials: Iterable[Pair],
        phases: Sequence[Sequence[Pair]],
        now: float,
        *,
        everybody: bool = False,
    ) -> None:
        self._stage, self._answers, self._half_at, self._cut_off_at = stage, {}, None, None
        self._began, self._until = now, now + self._rules.within
        everyone: dict[int, tuple[list[Partner], list[Partner]]] = {}
        network = self._rules.network or self._rules.gloo
        for one, other in sorted(dials) if network else ():
            self._add(everyone, one, other, 0)
        for phase in phases if network else ():
            for one, other in phase:
                self._add(everyone, one, other, 1)
        if everybody:
            for number in range(len(self._members)):
                everyone.setdefault(number, ([], []))
        self._asked = {
            number: Task(
                self._secret,
                stage,
                number,
                tuple(dialled),
                tuple(tested),
                self._rules.within,
                self._rules.store,
                self._rules.gloo,
            )
            for number, (dialled, tested) in everyone.items()
        }
        self.tasks = {self._members[number].node_id: task for number, task in self._asked.items()}

    def _add(self, everyone: dict[int, tuple[list[Partner], list[Partner]]], one: int, other: int, which: int) -> None:
        """Have node ``one`` dial ``other``, if that takes connections; the latter has to expect it."""
        everyone.setdefault(other, ([], []))
        mine = everyone.setdefault(one, ([], []))
        peer = self._members[other]
        if peer.measures:
            mine[which].append(Partner(other, address_for(peer, self._members[one].machine), peer.measures))

    def _missing(self) -> list[int]:
        return [number for number in self._asked if number not in self._answers and number not in self._gone]

    def _is_cut_off(self, missing: Sequence[int]) -> bool:
        """Whether all missing nodes are known to be unreachable by most of those that have tried."""
        tried: dict[int, list[bool]] = {number: [] for number in missing}
        for answer in self._answers.values():
            for way in answer.ways:
                if way.to in tried:
                    tried[way.to].append(bool(way.problem))
        return all(len(found) > 1 and 2 * sum(found) > len(found) for found in tried.values())

    def _take_answers(self) -> None:
        for number, answer in self._answers.items():
            if answer.problem:
                self._measured.problems[number] = answer.problem
            if answer.service_us:
                known = self._measured.service_us.get(number, answer.service_us)
                self._measured.service_us[number] = min(known, answer.service_us)
            tested = {partner.index for partner in self._asked[number].tests}
            asked = tested.union(partner.index for partner in self._asked[number].dials)
            for way in answer.ways:  # an answer that nobody has asked for does not count
                if way.to in asked:
                    heard = way if way.to in tested else Way(way.to, way.latency_us, problem=way.problem)
                    self._measured.add((number, way.to), heard)

    def _faults(self) -> list[Fault]:
        """What is wrong with the nodes that are there and have answered."""
        out = self._gone | self._silent.keys()
        return judge(self._measured.without(out), self._rules.factor, lambda number: self._members[number].name)

    def _again(self, suspects: Sequence[Fault]) -> tuple[set[Pair], set[Pair]]:
        """What to dial and test once more: suspected pairs, and suspected nodes with others that are not."""
        out = self._gone | self._silent.keys()
        named = {node for fault in suspects for node in fault.nodes}
        cut = {
            pair
            for pair, way in self._measured.ways.items()
            if way.problem and named.intersection(pair) and out.isdisjoint(pair)
        }
        tests = {fault.nodes for fault in suspects if len(fault.nodes) == 2 and out.isdisjoint(fault.nodes)}
        slow = Counter(fault.nodes[0] for fault in suspects if len(fault.nodes) == 1 and fault.kind == "slow")
        count = len(self._members)
        for node in slow.keys() - out:
            most = _PARTNERS if slow[node] == 1 else _PARTNERS_OF_LATE
            tests.update(schedule.other_partners(node, count, out | named, self._secret, most))
        pairs = {(min(pair), max(pair)) for pair in tests}
        return cut | pairs, pairs

    def _conclude(self, found: Consequences) -> Result:
        name = [member.name for member in self._members]

        def told(fault: Fault) -> str:
            names = " and ".join(name[number] for number in fault.nodes)
            return f"{names} {fault.why}".strip()

        unfit = {}
        for number, fault in found.left_out.items():
            who = "it" if len(fault.nodes) == 1 else name[number]
            unfit[self._members[number].node_id] = f"{told(fault)}; {who} is left out until the round is over"
        silent = {self._members[number].node_id: why for number, why in self._silent.items()}
        out = self._gone | self._silent.keys()
        warned: dict[str, list[str]] = {}
        for number, checks in self._measured.checks.items():
            for check in checks if number not in out else ():
                if check.verdict == "warning":
                    warned.setdefault(check.name, []).append(f"{name[number]}: {check.text}")
        words = [*(f"{told(fault)}; there is no spare for it" for fault in found.kept if fault.nodes)]
        words += [told(fault) for fault in found.kept if not fault.nodes]
        words += [f"{what}: {some(texts, 2)}" for what, texts in warned.items()]
        return Result(unfit, silent, tuple(words), "; ".join(map(told, found.fatal)))
