"""The conformance suite of rdzv-plugins on this backend."""

from collections.abc import Iterator

import pytest
from rdzv_http.conformance import HttpHarness

from rdzv_plugins.testing.every_theme import *  # noqa: F403


@pytest.fixture(scope="session")
def harness() -> Iterator[HttpHarness]:
    with HttpHarness() as harness:
        yield harness
