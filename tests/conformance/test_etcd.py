from __future__ import annotations

import os
import shutil

import pytest

from rdzv_plugins.testing.builtin import EtcdHarness
from rdzv_plugins.testing.every_theme import *  # noqa: F403


@pytest.fixture(scope="session")
def harness():
    if shutil.which("etcd") is None and os.environ.get("CI") != "true":
        pytest.skip("no etcd: apt-get install etcd-server")
    with EtcdHarness() as harness:
        yield harness
