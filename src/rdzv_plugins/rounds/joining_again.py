"""Tells whether something failed in a round because the round is over."""

from __future__ import annotations

from rdzv_plugins.interfaces import RendezvousHandler


def must_join_again(handler: RendezvousHandler) -> bool:
    """Something of the round has failed here: True if this node has to join another round. May wait for the answer.

    While it is determined whether a node was lost, another may ask for a new round: that is no loss, but the round is
    over.
    """
    return handler.must_rejoin() or handler.peer_lost() or handler.must_rejoin()
