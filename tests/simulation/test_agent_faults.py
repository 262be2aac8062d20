"""Anything at any moment, from seeds: whole agents in simulated time. ``python -m simulation.faults`` runs more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.faults import KINDS, Faulty, story

SEEDS = 200
HALF = SEEDS // 2


@pytest.mark.parametrize("seeds", [range(HALF), range(HALF, SEEDS)], ids=["first", "second"])
def test_whatever_happens_every_agent_ends_as_it_is_promised(seeds: range) -> None:
    """``Job.check`` says what: no restart but for failures of their own, no blame for others, nothing left behind."""
    met = Counter[str]()
    for seed in seeds:
        faulty = Faulty(seed).run()
        met.update({kind: count for (kind, _), count in faulty.met.items()})
    assert all(met[kind.__name__.strip("_")] for kind in KINDS), "each kind has happened"


def test_a_seed_is_the_same_story_in_another_process() -> None:
    told = [story(Faulty(seed).run()) for seed in range(5)]
    again = "from simulation.faults import *; print('\\n---\\n'.join(story(Faulty(seed).run()) for seed in range(5)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, env=environment, check=True)
    assert other.stdout.rstrip("\n").split("\n---\n") == told
