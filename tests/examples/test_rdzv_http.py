"""examples/rdzv-http passes its own tests where it is installed as a wheel."""

from pathlib import Path

import pytest
from kits.examples.distributions import CleanEnvironment, passes_its_own_tests

pytestmark = pytest.mark.thorough


@pytest.mark.timeout(1600)
def test_rdzv_http_passes_its_own_tests(installed: CleanEnvironment, tmp_path: Path) -> None:
    passes_its_own_tests(installed, "rdzv-http", tmp_path)
