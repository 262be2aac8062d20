"""Ports that tests choose: no two of them the same, in one process or in those of one run."""

import itertools

import pytest

from rdzv_plugins.testing import free_port


def test_no_port_twice() -> None:
    ports = [free_port() for _ in range(900)]
    assert len(set(ports)) == len(ports)


def test_processes_of_one_run_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "5")
    ranges = []
    for worker in range(5):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        ports = [free_port() for _ in range(150)]
        ranges.append((min(ports), max(ports)))
    for (_, last), (first, _) in itertools.pairwise(ranges):
        assert last < first


@pytest.mark.parametrize("count", ["0", "1", "64"])
def test_all_ports_where_shares_would_be_too_small(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", count)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    ports = [free_port() for _ in range(200)]
    assert max(ports) - min(ports) > 5000
