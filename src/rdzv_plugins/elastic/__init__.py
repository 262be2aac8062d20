"""The elastic rendezvous over any coordination backend: a node's side (``handler``) and the leader's (``leading``).

Begin with ``keys`` (all that nodes tell each other), ``joining`` (a node's side of a round), ``leading.membership``
(the leader's state machine) and ``round_store``. A node's side is its ``contact`` with the service (and what it says
there), which ``link`` keeps, a ``view`` (what it has been told), its ``own_round`` (and whether a node of that was
lost), and what it does: ``joining``, ``leaving``, ``asking``.
"""
