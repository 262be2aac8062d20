"""The base of all themes: what every test may ask of the backend under test, and how it records a gap."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import pytest

from rdzv_plugins.host.catalog import Entry
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.harness import Harness
from rdzv_plugins.testing.installed import entry
from rdzv_plugins.testing.suite.ground import why_untried

GAP = "rdzv_gap"
"""The name of the property by which a test reports a gap."""
UNTRIED = "rdzv_untried"
"""The name of the property of a test that was not tried, because what it builds on is broken."""

_BUILDS = "conformance_builds_on_ground"

Test = TypeVar("Test", bound=Callable[..., None])


def on_ground(test: Test) -> Test:
    """Mark a test that is not tried if the ground is broken, in a theme whose other tests are."""
    setattr(test, _BUILDS, True)
    return test


class Theme:
    """A theme of the conformance suite. Subclass one of those below as ``class TestSomething(ThatTheme)``."""

    theme: ClassVar[str] = ""
    """The theme's name in the report."""
    builds_on_ground: ClassVar[bool] = True
    """Whether its tests are skipped while ``create`` or its calls do not even work: they would mean nothing."""

    @pytest.fixture(autouse=True)
    def _on_ground(self, harness: Harness, request: pytest.FixtureRequest) -> None:
        """Leave the test out if the ground is broken: the cause is reported once, without its consequences."""
        builds = getattr(request.function, _BUILDS, self.builds_on_ground)
        if builds and (why := why_untried(harness)):
            request.node.user_properties.append((UNTRIED, why))
            pytest.skip(why)

    @staticmethod
    def entry(harness: Harness) -> Entry:
        """The backend under test as the plug-in host finds it. Raises what a launch would."""
        return entry(harness.backend)

    @staticmethod
    def declares(harness: Harness, capability: Capability) -> bool:
        """Whether the backend declares that capability."""
        return capability in entry(harness.backend).backend.capabilities

    @staticmethod
    def gap(request: pytest.FixtureRequest, why: str) -> None:
        """Report something that the backend does not promise, and that it was refused as it should be.

        A test that ends like this has passed; one that was not even tried says ``not tried: `` and why.
        """
        request.node.user_properties.append((GAP, why))
