from __future__ import annotations

import pytest

from rdzv_plugins.testing.builtin import TieredHarness
from rdzv_plugins.testing.every_theme import *  # noqa: F403


@pytest.fixture(scope="session")
def harness():
    with TieredHarness() as harness:
        yield harness
