from __future__ import annotations

import os
import shutil

import pytest

from rdzv_plugins.testing import (
    BackendTheme,
    FailureTheme,
    LaunchTheme,
    PluginTheme,
    RendezvousTheme,
    ScaleTheme,
    StoreTheme,
)
from rdzv_plugins.testing.builtin import EtcdHarness


@pytest.fixture(scope="session")
def harness():
    if shutil.which("etcd") is None and os.environ.get("CI") != "true":
        pytest.skip("no etcd: apt-get install etcd-server")
    with EtcdHarness() as harness:
        yield harness


class TestPlugin(PluginTheme): ...


class TestBackend(BackendTheme): ...


class TestRendezvous(RendezvousTheme): ...


class TestStore(StoreTheme): ...


class TestFailure(FailureTheme): ...


class TestLaunch(LaunchTheme): ...


class TestScale(ScaleTheme): ...
