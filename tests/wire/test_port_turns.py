"""Where the workers' stores of a job are: on the ports of a range in turn, none again while somebody may hold on."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rdzv_plugins.kvstore.sockets.listening import PortTurns
from rdzv_plugins.options import PortRange, WorkerStoreOptions
from rdzv_plugins.rounds.worker_stores import WorkerStores
from rdzv_plugins.testing.harness import free_port

HERE = "127.0.0.1"


def free_range(count: int) -> PortRange:
    """Ports side by side on which nobody listens, and no connection of earlier tests is."""
    while True:
        first = free_port()
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind((HERE, port))
        except OSError:
            continue
        return PortRange(first, first + count - 1)


@pytest.fixture(params=["parallel", "torch"])
def stores(request: pytest.FixtureRequest) -> Iterator[WorkerStores]:
    options = WorkerStoreOptions(store=request.param, worker_ports=free_range(4))
    stores = WorkerStores(options, timeout=60)
    yield stores
    stores.shutdown()


def opened(stores: WorkerStores) -> int:
    return int(stores.open(HERE, "the store").port)


def test_each_port_has_its_turn_before_one_comes_again(stores: WorkerStores) -> None:
    rounds = [opened(stores) for _ in range(8)]
    assert len(set(rounds[:4])) == 4
    assert rounds[4:] == rounds[:4]


def test_port_is_not_used_again_while_a_connection_to_it_lives(stores: WorkerStores) -> None:
    first = opened(stores)
    with socket.create_connection((HERE, first)):  # of a worker that does not notice, or cannot
        assert first not in [opened(stores) for _ in range(7)]


def test_only_port_is_used_again() -> None:
    port = free_port()
    stores = WorkerStores(WorkerStoreOptions(store="parallel", worker_ports=PortRange(port, port)), timeout=60)
    assert opened(stores) == port
    with socket.create_connection((HERE, port)):
        assert opened(stores) == port
    stores.shutdown()


def test_ports_that_are_taken_are_left_out() -> None:
    ports = free_range(4)
    with socket.create_server((HERE, ports.first + 1)):
        stores = WorkerStores(WorkerStoreOptions(store="parallel", worker_ports=ports), timeout=60)
        rounds = [opened(stores) for _ in range(6)]
        stores.shutdown()
    assert set(rounds[:3]) == {ports.first, ports.first + 2, ports.last}
    assert rounds[3:] == rounds[:3]


def test_processes_begin_at_different_ports() -> None:
    firsts = {next(iter(PortTurns(PortRange(2, 1001)))) for _ in range(20)}
    assert len(firsts) > 15
    assert next(iter(PortTurns(PortRange()))) == 0
