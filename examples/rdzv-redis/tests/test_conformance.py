"""The conformance suite of rdzv-plugins. Its fixture ``harness`` is in ``conftest.py``."""

from __future__ import annotations

from rdzv_plugins.testing import (
    BackendTheme,
    FailureTheme,
    LaunchTheme,
    PluginTheme,
    RendezvousTheme,
    ScaleTheme,
    StoreTheme,
)


class TestPlugin(PluginTheme): ...


class TestBackend(BackendTheme): ...


class TestRendezvous(RendezvousTheme): ...


class TestStore(StoreTheme): ...


class TestFailure(FailureTheme): ...


class TestScale(ScaleTheme): ...


class TestLaunch(LaunchTheme): ...
