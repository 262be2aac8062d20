"""The conformance suite of rdzv-plugins on this backend."""

from collections.abc import Iterator

import pytest
from rdzv_http.conformance import HttpHarness

from rdzv_plugins.testing import (
    BackendTheme,
    FailureTheme,
    LaunchTheme,
    PluginTheme,
    RendezvousTheme,
    ScaleTheme,
    StoreTheme,
)


@pytest.fixture(scope="session")
def harness() -> Iterator[HttpHarness]:
    with HttpHarness() as harness:
        yield harness


class TestPlugin(PluginTheme): ...


class TestBackend(BackendTheme): ...


class TestRendezvous(RendezvousTheme): ...


class TestStore(StoreTheme): ...


class TestFailure(FailureTheme): ...


class TestLaunch(LaunchTheme): ...


class TestScale(ScaleTheme): ...
