from __future__ import annotations

import pytest

from rdzv_plugins.testing import (
    BackendTheme,
    FailureTheme,
    LaunchTheme,
    PluginTheme,
    RendezvousTheme,
    ScaleTheme,
    StoreTheme,
)
from rdzv_plugins.testing.builtin import C10dHarness


@pytest.fixture(scope="session")
def harness():
    with C10dHarness() as harness:
        yield harness


class TestPlugin(PluginTheme): ...


class TestBackend(BackendTheme): ...


class TestRendezvous(RendezvousTheme): ...


class TestStore(StoreTheme): ...


class TestFailure(FailureTheme): ...


class TestLaunch(LaunchTheme): ...


class TestScale(ScaleTheme): ...
