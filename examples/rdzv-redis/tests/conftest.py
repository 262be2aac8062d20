from __future__ import annotations

from collections.abc import Iterator

import pytest

from rdzv_redis.conformance import RedisHarness

pytest_plugins = ["rdzv_plugins.testing.plugin"]


@pytest.fixture(scope="session")
def harness() -> Iterator[RedisHarness]:
    """A Redis for all tests that do not need one of their own."""
    with RedisHarness() as harness:
        yield harness
