"""A slow way to the endpoint, 50 ms in each direction: nothing is asked more often because of it, or given up."""

from __future__ import annotations

from kits import KITS
from kits.hosts.fleet import PORT, Fleet, in_one_round

STORE = 29600


def test_eight_nodes_ask_no_more_of_an_endpoint_far_away(fleet: Fleet) -> None:
    alpha, beta = fleet.lan.add("alpha", "beta")
    near, far = fleet.serve(alpha), f"{alpha.address}:{PORT + 1}"
    fleet.relay(alpha, (PORT + 1, near))
    handlers = fleet.start(beta, ["python", KITS / "hosts" / "handlers.py", near, far])
    assert handlers.wait() == 0, handlers.text
    by_near, by_far = handlers.reports()
    assert by_far["quickest"] >= 0.1, "there and back"
    assert by_near["ranks"] == by_far["ranks"] == [list(range(8))] * 2
    assert by_near["asked"] == by_far["asked"]


def test_nodes_train_and_form_again_far_from_each_other(fleet: Fleet) -> None:
    """Endpoint and workers' store are behind the relay, also for the host that serves both."""
    alpha, beta, gamma, hub = fleet.lan.add("alpha", "beta", "gamma", "hub")
    fleet.relay(hub, *((port, f"{alpha.address}:{port}") for port in (PORT, STORE)))
    endpoint, flags = f"{hub.address}:{PORT}", ["--max-restarts=1"]
    conf = f"is_host=true,worker_ports={STORE}"
    first = fleet.node(
        alpha, endpoint, 3, rank=0, conf=conf, script="trains.py", flags=[*flags, f"--local-addr={hub.address}"]
    )
    others = [
        fleet.node(host, endpoint, 3, rank=rank, script="trains.py", flags=flags)
        for rank, host in enumerate((beta, gamma), 1)
    ]
    before = in_one_round(first, *others)
    assert {(report["MASTER_ADDR"], report["MASTER_PORT"]) for report in before} == {(hub.address, str(STORE))}
    assert alpha.listens(STORE)
    (worker,) = fleet.cluster.workers(others[0], "trains.py")
    fleet.cluster.kill(worker)
    again = in_one_round(first, *others, after=before)
    assert {report["MASTER_ADDR"] for report in again} == {hub.address}
    fleet.finish(first, *others)
