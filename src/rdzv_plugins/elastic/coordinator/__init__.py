"""What the leading node decides: the state machine of members and rounds, and what runs it.

``state_machine`` decides: events and the time in, what to publish out. It is pure, and so is what it is made of:
``placement`` (who is in a round, in which order), ``member_table`` (who is left out), and ``gates``, the interface of
rules that not every job has: ``quorum`` (several endpoints), ``round_recovery`` (what an outage leaves),
``preflight_gate``. ``coordinator`` runs it on a thread of its own, reads the news by ``member_monitor``, and publishes;
each of its writes is guarded by its own key, so that one that was replaced changes nothing.
"""
