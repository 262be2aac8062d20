from __future__ import annotations

import pytest

from rdzv_plugins.testing.builtin import ParallelHarness
from rdzv_plugins.testing.every_theme import *  # noqa: F403


@pytest.fixture(scope="session")
def harness():
    with ParallelHarness() as harness:
        yield harness
