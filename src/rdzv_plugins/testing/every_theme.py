"""Every theme of the conformance suite as a class of tests: a plug-in's tests import ``*`` from here.

They add the fixture ``harness``, of scope ``session``; to leave out themes, they define classes of their own instead,
derived from those of ``rdzv_plugins.testing``.
"""

from __future__ import annotations

from rdzv_plugins.testing import BackendTheme as TestBackend
from rdzv_plugins.testing import FailureTheme as TestFailure
from rdzv_plugins.testing import LaunchTheme as TestLaunch
from rdzv_plugins.testing import MovesTheme as TestMoves
from rdzv_plugins.testing import PluginTheme as TestPlugin
from rdzv_plugins.testing import RendezvousTheme as TestRendezvous
from rdzv_plugins.testing import ScaleTheme as TestScale
from rdzv_plugins.testing import StoreTheme as TestStore

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
