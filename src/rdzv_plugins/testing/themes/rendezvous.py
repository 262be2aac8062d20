"""``RendezvousTheme``: nodes meet, come late, are spares, leave and are lost, and all agree on who is where."""

from __future__ import annotations

from rdzv_plugins.testing.rendezvous.ends import NodeEnds
from rdzv_plugins.testing.rendezvous.refusals import Refusals
from rdzv_plugins.testing.rendezvous.rounds import Rounds


class RendezvousTheme(Rounds, NodeEnds, Refusals):
    """Tests the invariants of the elastic rendezvous, I1 to I11, as far as the backend and its kind promise them.

    Each node is a process of its own, whose handler is made as the launcher makes it.
    """

    theme = "rendezvous"
