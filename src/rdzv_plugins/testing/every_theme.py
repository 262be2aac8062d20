"""Every theme of the conformance suite as a class of tests: a plug-in's tests import ``*`` from here.

They add the fixture ``harness``, of scope ``session``; to leave out themes, they define classes of their own instead,
derived from those of ``rdzv_plugins.testing``.

It is also what ``rdzv conformance BACKEND`` gives to pytest, with the fixture below; ``pytest -p
rdzv_plugins.testing.plugin --conformance-backend=NAME .../every_theme.py`` does the same.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import pytest

from rdzv_plugins import testing
from rdzv_plugins.errors import PluginError, RdzvError
from rdzv_plugins.options import parse_conf
from rdzv_plugins.testing import Harness
from rdzv_plugins.testing.find import find_harness
from rdzv_plugins.testing.harness import entry

__all__ = [  # without the fixture: an author's own has that name
    "TestPlugin",
    "TestBackend",
    "TestRendezvous",
    "TestStore",
    "TestFailure",
    "TestMoves",
    "TestLaunch",
    "TestScale",
]

# in the order of the tests: what the others build on comes first
TestPlugin = testing.PluginTheme
TestBackend = testing.BackendTheme
TestRendezvous = testing.RendezvousTheme
TestStore = testing.StoreTheme
TestFailure = testing.FailureTheme
TestMoves = testing.MovesTheme
TestLaunch = testing.LaunchTheme
TestScale = testing.ScaleTheme


@pytest.fixture(scope="session")
def harness(pytestconfig: pytest.Config) -> Iterator[Harness]:
    """The harness of the backend on the command line. Ends the run if it cannot be started: no test could pass.

    This holds for anything that its ``start`` raises: it is the harness's fault, not a broken promise of the backend.
    """
    given = pytestconfig.getoption
    with contextlib.ExitStack() as running:
        try:
            conf = parse_conf(given("conformance_conf"))
            found = find_harness(given("conformance_backend"), given("conformance_endpoint"), conf)
            running.enter_context(found)
        except RdzvError as error:
            pytest.exit(f"{error}\n{error.remedy}".rstrip(), returncode=error.exit_code)
        except Exception as error:
            pytest.exit(_not_started(pytestconfig, error), returncode=PluginError.exit_code)
        yield found


def _not_started(config: pytest.Config, error: Exception) -> str:
    """Why a harness cannot be started that did not say so by an ``RdzvError``."""
    backend = config.getoption("conformance_backend")
    owner = entry(backend).record.distribution
    trace = f"\n{''.join(traceback.format_exception(error))}" if config.get_verbosity() > 0 else ""
    return (
        f"the harness of backend {backend!r} from {owner} could not be started: {type(error).__name__}: {error}\n"
        f"Its start() should raise an RdzvError that says what is missing. To run without it: --rdzv-endpoint.{trace}"
    )
