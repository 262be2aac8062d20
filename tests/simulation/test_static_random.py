"""Jobs of ``static`` from seeds, to which anything happens at any moment; a seed is the same job anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.faults import story
from simulation.scheduler import Stuck
from simulation.static_faults import STATIC_KINDS, StaticFaulty


@pytest.mark.parametrize("seeds", [range(200), pytest.param(range(200, 3000), marks=pytest.mark.thorough)])
def test_whatever_happens_every_agent_ends_as_it_is_promised(seeds: range) -> None:
    met, wrong = Counter[str](), {}
    for seed in seeds:
        faulty = StaticFaulty(seed)
        try:
            faulty.run()
        except (AssertionError, Stuck) as error:
            wrong[seed] = str(error)
        met.update({kind: count for (kind, _), count in faulty.met.items()})
    assert not wrong
    assert all(met[kind.__name__.strip("_")] for kind in STATIC_KINDS), "each kind has happened"


def told(seeds: range) -> str:
    """All that has happened in these jobs, and all that was sent."""
    jobs = [StaticFaulty(seed) for seed in seeds]
    return "\n".join(f"{story(each.run())}\n{each.digest}" for each in jobs)


def test_a_seed_is_the_same_job_in_every_process() -> None:
    code = "from simulation.test_static_random import told; print(told(range(5)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": "random"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert other.stdout.rstrip("\n") == told(range(5))
