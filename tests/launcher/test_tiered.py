"""``store=tiered`` with real agents, workers and stores: the workers' route."""

from __future__ import annotations

from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Meeting, outputs
from kits.launcher.tiered_kit import reports, root_of, tiered, trunks, wait_clients


@pytest.mark.parametrize("backend", ["tiered", pytest.param("etcd", marks=pytest.mark.thorough)], indirect=True)
def test_workers_train_over_gloo_by_their_nodes_proxy(meeting: Meeting) -> None:
    go_on = meeting.directory / "go-on"
    job = tiered(meeting, 2, script="report.py", args=("wait", go_on), nproc=2, conf="ttl=60,trunk_grace=60")
    nodes = [job.node(0), job.node(1)]
    for node in nodes:
        node.wait_for(r'("SUM": 6.0[^$]*){2}')
    root = root_of(nodes)
    proxies = [{report["MASTER_PORT"] for report in node.reports()} for node in nodes]
    assert [len(ports) for ports in proxies] == [1, 1]
    assert len({str(root.port), *proxies[0], *proxies[1]}) == 3, "one for each node, and none is the store"
    assert {report["MASTER_ADDR"] for node in nodes for report in node.reports()} == {"127.0.0.1"}

    def saving() -> list[dict[str, Any]] | None:
        seen = trunks(root, count=2, workers=4, proxies=2)
        told = [report for trunk in seen for report in reports(trunk)]
        saved = all(0 < report["upstream"] < report["requests"] for report in told)
        return seen if saved and all(trunk["attached"] for trunk in seen) else None

    seen = eventually(saving, lambda: f"nothing is saved: {trunks(root, 2, 4, 2)}")
    assert [trunk["name"].partition(" on ")[0] for trunk in seen] == ["node 0", "node 1"]
    wait_clients(root, 2)  # the proxies alone: neither workers nor agents

    go_on.touch()
    assert [node.wait() for node in nodes] == [0, 0], outputs(nodes)
    assert meeting.processes() == {}
