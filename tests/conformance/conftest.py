from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

# many of these tests run at once, each with processes of its own; the suite reads it when it is first used
os.environ.setdefault("RDZV_CONFORMANCE_PATIENCE", "90")

from rdzv_plugins.testing import Harness
from rdzv_plugins.testing.find import find_harness

SAMPLED = ("test_static.py", "test_c10d.py", "test_tiered.py")
"""Of these the gate has a sample: the suite is run whole on a backend of each other kind."""
EACH = 6


@pytest.fixture(scope="module")
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """That of the backend after which the file is called."""
    name = request.path.stem.removeprefix("test_")
    if name == "etcd" and shutil.which("etcd") is None and os.environ.get("CI") != "true":
        pytest.skip("no etcd: apt-get install etcd-server")
    with find_harness(name) as harness:
        yield harness


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of each theme the first test and every sixth after it are in the sample."""
    sampled = [Path(__file__).with_name(name) for name in SAMPLED]  # `items` are those of all folders
    count: dict[tuple[str, str], int] = {}
    for item in items:
        if item.path in sampled and isinstance(item, pytest.Function):
            theme = item.path.name, item.function.__qualname__.partition(".")[0]
            number = count[theme] = count.get(theme, -1) + 1
            if number % EACH:
                item.add_marker(pytest.mark.thorough)
