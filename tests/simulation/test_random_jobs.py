"""Jobs from seeds to which anything may happen; a seed is the same job anywhere, and a failing one gets smaller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.random_jobs import Cut, RandomJob, shrunk
from simulation.scheduler import Scheduler
from simulation.seeds import Report, digests, wrong_in
from simulation.world import World

SEEDS, EACH, MOST = 2000, 250, 10000
TELLS = """
from simulation.seeds import digests
for each in digests(range(4, 10)):
    print(each)
"""


@pytest.fixture(scope="module")
def report() -> Report:
    """Of all jobs of this file, which one tester runs."""
    return Report()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_jobs_to_which_anything_happens(first: int, report: Report) -> None:
    wrong = list(wrong_in(range(first, first + EACH), report))
    assert not wrong, "\n".join(wrong)


def test_each_kind_of_fault_has_met_each_state_and_each_oracle_has_judged(report: Report) -> None:
    if sum(report.jobs.values()) < SEEDS:
        pytest.skip("only after all of the jobs above")
    first = SEEDS
    while report.zeros and first < MOST:  # what chance has not brought about in so many, it does in some more
        wrong = list(wrong_in(range(first, first + EACH), report))
        assert not wrong, "\n".join(wrong)
        first += EACH
    print(*report.lines, sep="\n")
    assert not report.zeros


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(SEEDS, 3 * SEEDS, EACH))
def test_more_jobs(first: int) -> None:
    wrong = list(wrong_in(range(first, first + EACH), Report()))
    assert not wrong, "\n".join(wrong)


def test_a_seed_is_the_same_job_in_every_process() -> None:
    """All writes, messages and decisions, whatever the hash seed; two jobs of each kind."""
    here = list(digests(range(4, 10)))
    assert len({each.split()[1] for each in here}) == 6
    environment = os.environ | {"PYTHONHASHSEED": "random", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", TELLS]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == here


class Brittle(RandomJob):
    """Fails with faults 3 and 5 and two nodes, in one way; with fault 1 in another."""

    def __init__(self, cut: Cut) -> None:
        world = World(1, 0, 1, 1)
        super().__init__(1, cut, Scheduler(1), world.network)
        self._there, self._faults = self._begin(4, 8, 1.0), range(8) if cut.faults is None else cut.faults

    def run(self) -> None:
        assert not self.violations

    @property
    def violations(self) -> list[str]:
        if {3, 5} <= {*self._faults} and self._there >= 2:
            return ["I1 two worlds"]
        return ["I5 not told"] if 1 in self._faults else []


def test_a_failing_job_is_shrunk_to_what_it_needs() -> None:
    assert shrunk(Brittle) == (Cut(2, (3, 5)), "I1 two worlds")
