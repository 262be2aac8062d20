"""The base of all themes: what every test may ask of the backend under test, and how it records a gap."""

from __future__ import annotations

from typing import ClassVar

import pytest

from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.installed import entry

GAP = "rdzv_gap"
"""The name of the property by which a test tells the report of a gap."""


class Theme:
    """A theme of the conformance suite. Subclass one of those below as ``class TestSomething(ThatTheme)``."""

    theme: ClassVar[str] = ""
    """Its name in the report."""

    @staticmethod
    def entry(harness: Harness) -> Entry:
        """The backend under test as the plug-in host finds it. Raises what a launch would."""
        return entry(harness.backend)

    @staticmethod
    def declares(harness: Harness, capability: Capability) -> bool:
        """Whether the backend promises that."""
        return capability in entry(harness.backend).backend.capabilities

    @staticmethod
    def gap(request: pytest.FixtureRequest, why: str) -> None:
        """Tell the report what the backend does not promise, and that it was refused as it should be.

        A test that ends so has passed; one that was not even tried says ``not tried: `` and why.
        """
        request.node.user_properties.append((GAP, why))
