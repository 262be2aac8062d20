"""The elastic rendezvous over any coordination backend: a node's side (``handler``) and the leader's (``leading``).

Begin with ``keys`` (all that nodes tell each other), ``leading.membership`` (the leader's state machine) and
``joining`` (a node's side). A node's side is a ``link`` (its session), a ``view`` (what it has been told), ``myself``
(what it says), and the stages of a round: ``joining``, ``round_store``, ``holding``, ``losses``, ``leaving``.
"""
