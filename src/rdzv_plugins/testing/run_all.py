"""What ``rdzv conformance BACKEND`` gives to pytest: every theme against the backend that is named.

``pytest -p rdzv_plugins.testing.plugin --conformance-backend=NAME .../run_all.py`` does the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from rdzv_plugins.errors import RdzvError
from rdzv_plugins.options import parse_conf
from rdzv_plugins.testing import (
    BackendTheme,
    FailureTheme,
    Harness,
    LaunchTheme,
    PluginTheme,
    RendezvousTheme,
    ScaleTheme,
    StoreTheme,
)
from rdzv_plugins.testing.find import find_harness


@pytest.fixture(scope="session")
def harness(pytestconfig: pytest.Config) -> Iterator[Harness]:
    """That of the backend which the command line names. Ends the run if it cannot be started: no test could pass."""
    given = pytestconfig.getoption
    with contextlib.ExitStack() as running:
        try:
            conf = parse_conf(given("conformance_conf"))
            found = find_harness(given("conformance_backend"), given("conformance_endpoint"), conf)
            running.enter_context(found)
        except RdzvError as error:
            pytest.exit(f"{error}\n{error.remedy}".rstrip(), returncode=error.exit_code)
        yield found


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


class TestLaunch(LaunchTheme):
    """See ``LaunchTheme``."""


class TestScale(ScaleTheme):
    """See ``ScaleTheme``."""
