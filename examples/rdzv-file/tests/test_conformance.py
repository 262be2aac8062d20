"""The conformance suite of rdzv-plugins on this backend."""

from collections.abc import Iterator

import pytest
from rdzv_file.conformance import FileHarness

from rdzv_plugins.testing.every_theme import *  # noqa: F403


@pytest.fixture(scope="session")
def harness() -> Iterator[FileHarness]:
    with FileHarness() as harness:
        yield harness
