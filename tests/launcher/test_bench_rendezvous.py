"""`rdzv bench rendezvous` runs, and counts what the design promises: a constant for each node, 0 when idle."""

import json

import pytest

from launcher import tools

NODES = (4, 16, 64)
PER_NODE = {
    "join": {"open_session": 1, "watch": 2, "put": 3},
    "loss": {"put": 2},
}
FOR_THE_JOB = 16
"""The leader's and the first node's own, at most; besides, each node may have tried to lead."""


def measured(capfd, *arguments: str) -> list[dict]:
    assert tools.main(["bench", "rendezvous", "--quick", "--json", "--ttl=1", *arguments]) == 0
    return json.loads(capfd.readouterr().out)["cases"]


@pytest.mark.parametrize("server", ["agent", "process"])
def test_requests_of_a_node_are_the_same_for_every_number_of_nodes(capfd, server) -> None:
    cases = measured(capfd, "--targets=ours", f"--nodes={','.join(map(str, NODES))}", f"--server={server}")
    assert [case["nodes"] for case in cases] == [*NODES]
    for case in cases:
        nodes, ours = case["nodes"], case["targets"]["ours"]
        assert (ours["unfinished"], ours["idle"]) == (None, {})
        for phase, expected in PER_NODE.items():
            assert ours[phase]["per_node"] == expected, (nodes, phase)
            assert ours[phase]["seconds"]["median"] > 0
            for name, count in ours[phase]["requests"].items():  # counted by the server
                least = (nodes if phase == "join" else nodes - 1) * expected.get(name, 0)
                most = least + FOR_THE_JOB + (nodes if (name, phase) == ("put", "join") else 0)
                assert least <= count <= most, (nodes, phase, name)
        assert (ours["server_peak_mib"] is not None) == (server == "process")


def test_torch_is_measured_beside_ours(capfd) -> None:
    (case,) = measured(capfd, "--nodes=4")
    for target in case["targets"].values():
        assert target["unfinished"] is None
        assert target["join"]["seconds"]["median"] > 0
        assert target["loss"]["seconds"]["median"] > 0
    assert case["targets"]["torch"]["loss"]["requests"]["compare_set"] >= 3  # each survivor has joined again
    assert set(case["ratios"]) == {"join", "loss"}
