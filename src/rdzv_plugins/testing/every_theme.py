"""Every theme of the conformance suite as a class of tests: a plug-in's tests import ``*`` from here.

They add the fixture ``harness``, of scope ``session``; themes that are to be left out are classes of their own instead,
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
    """See ``PluginTheme``."""


class TestBackend(BackendTheme):
    """See ``BackendTheme``."""


class TestRendezvous(RendezvousTheme):
    """See ``RendezvousTheme``."""


class TestStore(StoreTheme):
    """See ``StoreTheme``."""


class TestFailure(FailureTheme):
    """See ``FailureTheme``."""


class TestMoves(MovesTheme):
    """See ``MovesTheme``."""


class TestLaunch(LaunchTheme):
    """See ``LaunchTheme``."""


class TestScale(ScaleTheme):
    """See ``ScaleTheme``."""
