"""Jobs from seeds to which anything may happen; a seed is the same job anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.random_jobs import job_of

_EACH = 100


@pytest.mark.parametrize("first", range(0, 2000, _EACH))
def test_jobs_to_which_anything_happens(first: int) -> None:
    wrong = {}
    for seed in range(first, first + _EACH):
        try:
            job_of(seed).run()
        except AssertionError as error:
            wrong[seed] = str(error)
    assert not wrong


def test_a_seed_is_the_same_job_in_every_process() -> None:
    """All writes, messages and decisions; with whatever hash seed."""
    first, second, again, once_more = (_told(seed, hash_seed) for hash_seed in ("1", "random") for seed in ("2", "3"))
    assert (first, second) == (again, once_more)
    assert first != second


def _told(seed: str, hash_seed: str) -> bytes:
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, str(here), "--seed", seed, "--all"]
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout
