"""examples/rdzv-redis passes its own tests where it is installed as a wheel."""

import os
import shutil
from pathlib import Path

import pytest
from kits.examples.distributions import CleanEnvironment, passes_its_own_tests

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("redis-server") is None and os.environ.get("CI") != "true",
        reason="no Redis: tests/install.sh redis",
    ),
]


@pytest.mark.timeout(1600)
def test_rdzv_redis_passes_its_own_tests(installed: CleanEnvironment, tmp_path: Path) -> None:
    passes_its_own_tests(installed, "rdzv-redis", tmp_path)
