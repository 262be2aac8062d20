"""The trials of a job, as the membership sees them: may the waiting nodes begin a round, and which of them?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.leading.trial.trial import Result, Trial
from rdzv_plugins.elastic.trial_keys import Task
from rdzv_plugins.elastic.trial_rules import TrialRules

_NEWCOMERS = 1
"""How often a trial before a round is repeated because of nodes that have come in the meantime."""


class Trials:
    """The trials of a job, one after the other. Not thread-safe. Times are the leader's own monotonic seconds.

    A node that has not passed is left out until the round formed without it is over; then it is tried again.
    """

    def __init__(self, rules: TrialRules) -> None:
        self._rules = rules
        self._trial: Trial | None = None
        self._passed: set[str] = set()
        self.unfit: set[str] = set()
        """The nodes that have not passed."""
        self._repeats = 0
        self._began = 0.0
        self._news = ""

    @property
    def tasks(self) -> dict[str, Task]:
        """What is to be sent to nodes, since the last call."""
        if self._trial is None:
            return {}
        tasks, self._trial.tasks = self._trial.tasks, {}
        return tasks

    @property
    def is_on(self) -> bool:
        """Whether nodes are being tried now."""
        return self._trial is not None

    def round_over(self) -> None:
        """Have all nodes tried again before the next round."""
        self._trial, self._passed, self.unfit, self._repeats = None, set(), set(), 0

    def heard(self, member: Member, now: float) -> None:
        """A member says something about itself."""
        if self._trial is not None:
            self._trial.heard(member, now)

    def gone(self, node: str) -> None:
        """A node is lost, or has left."""
        self._passed.discard(node)
        self.unfit.discard(node)
        if self._trial is not None:
            self._trial.gone(node)

    def deadline(self) -> float | None:
        """When to ask for ``result`` at the latest; None while nobody is being tried."""
        return self._trial.deadline() if self._trial is not None else None

    def facts(self) -> str:
        """What is waited for, in words for people; empty while nobody is being tried."""
        return self._trial.facts() if self._trial is not None else ""

    def are_through(self, waiting: Sequence[Member], room: int, now: float) -> bool:
        """Whether a round can be formed now from ``waiting``, which are enough. If not, a trial is on from now.

        ``room``: how many nodes a round may have.
        """
        if self._trial is not None:
            return False
        known = self._passed | self.unfit
        new = any(member.node_id not in known for member in waiting)
        if self._passed and (not new or len(self._passed) >= room or self._repeats > _NEWCOMERS):
            return True
        self._repeats += 1
        self._trial, self._began = Trial(self._rules, waiting, now), now
        return False

    def result(self, now: float, spares: int) -> Result | None:
        """The result of the current trial, once that is known; None before that, and while there is none."""
        trial = self._trial
        found = trial.result(now, spares) if trial is not None else None
        if trial is not None and found is not None:
            self._trial = None
            self._news = f"--preflight: {len(trial.nodes)} nodes were tested in {now - self._began:.1f} s"
            self.unfit = set(found.unfit)
            self._passed = set(trial.nodes) - self.unfit - set(found.silent)
        return found

    def want_more(self) -> None:
        """No round can be formed from those that have passed: nodes that come are tried, however often others were."""
        self._repeats = 0

    def news(self) -> str:
        """A sentence on what has ended since the last call; otherwise empty."""
        news, self._news = self._news, ""
        return news

    def untried(self, waiting: Collection[str]) -> set[str]:
        """Those of ``waiting`` that have to stay out of the next round."""
        return set(waiting) - self._passed
