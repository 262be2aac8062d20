"""Every theme of the conformance suite as a class of tests: a plug-in's tests import ``*`` from here.

They add the fixture ``harness``, of scope ``session``; to leave out themes, they define classes of their own instead,
derived from those of ``rdzv_plugins.testing``.
"""

from __future__ import annotations

from rdzv_plugins.testing import (
    BackendTheme,
    FailureTheme,
    LaunchTheme,
    MovesTheme,
    PluginTheme,
    RendezvousTheme,
    ScaleTheme,
    StoreTheme,
)

__all__ = [  # in the order of the tests: what the others build on comes first
    "TestPlugin",
    "TestBackend",
    "TestRendezvous",
    "TestStore",
    "TestFailure",
    "TestMoves",
    "TestLaunch",
    "TestScale",
]


class TestPlugin(PluginTheme):
    """Runs the theme ``plugin``: see ``PluginTheme``."""


class TestBackend(BackendTheme):
    """Runs the theme ``backend``: see ``BackendTheme``."""


class TestRendezvous(RendezvousTheme):
    """Runs the theme ``rendezvous``: see ``RendezvousTheme``."""


class TestStore(StoreTheme):
    """Runs the theme ``store``: see ``StoreTheme``."""


class TestFailure(FailureTheme):
    """Runs the theme ``failure``: see ``FailureTheme``."""


class TestMoves(MovesTheme):
    """Runs the theme ``moves``: see ``MovesTheme``."""


class TestLaunch(LaunchTheme):
    """Runs the theme ``launch``: see ``LaunchTheme``."""


class TestScale(ScaleTheme):
    """Runs the theme ``scale``: see ``ScaleTheme``."""
