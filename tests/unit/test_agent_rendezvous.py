"""The agent's way into a round, when that one is over before the ranks are exchanged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistNetworkError

from rdzv_launcher.run.agent import Agent
from rdzv_launcher.run.agent_loop import LostNodesCostNothing
from rdzv_plugins.errors import RendezvousFailed


def rendezvous(monkeypatch: pytest.MonkeyPatch, *, peer_lost: bool, must_rejoin: bool) -> int:
    """How many rounds it has joined; the first one's store goes away."""
    joined = []

    def join(*_: Any) -> None:
        joined.append(1)
        if len(joined) == 1:
            raise DistNetworkError("lost the store")

    monkeypatch.setattr(LostNodesCostNothing, "_rendezvous", join)
    agent = Agent.__new__(Agent)
    agent._handler = SimpleNamespace(
        peer_lost=lambda: peer_lost, must_rejoin=lambda: must_rejoin, get_run_id=lambda: "run"
    )
    agent._rendezvous(None)
    return len(joined)


@pytest.mark.parametrize(("peer_lost", "must_rejoin"), [(True, True), (False, True)], ids=["lost", "asked for"])
def test_round_that_is_over_is_followed_by_another(monkeypatch, peer_lost, must_rejoin):
    assert rendezvous(monkeypatch, peer_lost=peer_lost, must_rejoin=must_rejoin) == 2


def test_store_that_is_lost_while_all_nodes_live_is_an_error(monkeypatch):
    with pytest.raises(RendezvousFailed, match="run 'run': a node of the round has not started its workers"):
        rendezvous(monkeypatch, peer_lost=False, must_rejoin=False)
