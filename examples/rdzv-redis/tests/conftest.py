from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_redis.conformance import RedisHarness

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["rdzv_plugins.testing.plugin"]


@pytest.fixture(scope="session")
def harness() -> Iterator[RedisHarness]:
    """A Redis for all tests that do not need one of their own."""
    with RedisHarness() as harness:
        yield harness
