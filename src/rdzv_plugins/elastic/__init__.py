"""The elastic rendezvous over any coordination backend: a node's side (``handler``) and the leader's (``leading``).

Begin with ``keys`` (all that nodes tell each other), ``joining`` (a node's side of a round), ``leading.membership``
(the leader's state machine) and ``round_store``. A node's side is its ``contact`` with the service (what it hears and
says there, and its sessions), its ``own_round`` (and whether a node of that was lost), its part in the ``election`` of
a leader, and what it does: ``joining``, ``asking``, and leaving, by the ``handler``. Whether a process is gone is found
out by ``failures``, at the other's ``own_port``. With several endpoints ``failover`` is the backend.
"""
