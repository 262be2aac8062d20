"""The conformance suite, which a plug-in's own tests import and ``rdzv conformance`` runs. Themes need pytest.

A plug-in's tests are one fixture and an import::

    from rdzv_plugins.testing.every_theme import *

    @pytest.fixture(scope="session")
    def harness():
        with RedisHarness() as harness:
            yield harness
"""

import pkgutil
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdzv_plugins.testing.harness import Harness, Service, ServiceCounts, free_port
    from rdzv_plugins.testing.server import ServerProcess
    from rdzv_plugins.testing.themes.backend import BackendTheme
    from rdzv_plugins.testing.themes.failure import FailureTheme
    from rdzv_plugins.testing.themes.launch import LaunchTheme
    from rdzv_plugins.testing.themes.moves import MovesTheme
    from rdzv_plugins.testing.themes.plugin import PluginTheme
    from rdzv_plugins.testing.themes.rendezvous import RendezvousTheme
    from rdzv_plugins.testing.themes.scale import ScaleTheme
    from rdzv_plugins.testing.themes.store import StoreTheme

__all__ = [
    "BackendTheme",
    "FailureTheme",
    "Harness",
    "LaunchTheme",
    "MovesTheme",
    "PluginTheme",
    "RendezvousTheme",
    "ScaleTheme",
    "ServerProcess",
    "Service",
    "ServiceCounts",
    "StoreTheme",
    "free_port",
]

THEMES = ("plugin", "backend", "rendezvous", "store", "failure", "moves", "launch", "scale")
"""All themes, in the order of the report."""

_HARNESS = {
    **dict.fromkeys(("Harness", "Service", "ServiceCounts", "free_port"), "harness"),
    "ServerProcess": "server",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: a harness needs no pytest, and the processes of nodes need neither themes nor pytest.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _HARNESS.get(name)
    if module is None:
        import pytest

        # before they are imported: their plain asserts then report what they have compared
        ours = {each.name for each in pkgutil.walk_packages(__path__, f"{__name__}.")}
        pytest.register_assert_rewrite(*ours - set(sys.modules))
        module = f"themes.{name.removesuffix('Theme').lower()}"
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
