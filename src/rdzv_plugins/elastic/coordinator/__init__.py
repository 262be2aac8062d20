"""What the leading node decides: the state machine of members and rounds, and what runs it.

``membership`` decides, by rules that each have a file without I/O: ``placement`` (who is in a round, in which order),
``roster`` (who is left out), and those that not every job has, each a ``placement.Gate`` that it asks: ``quorum``
(several endpoints), ``kept_round`` (what an outage leaves), ``preflight_gate``. ``leader`` runs it, watches and
publishes.
"""
