"""What all rendezvous engines share: ends, failures, errors, settings, and the workers' stores.

Begin with ``ends`` (failures and outcomes as JSON, and as the error of a node that hears of one), ``worker_stores``
(one of either kind, each round) and ``job_record`` (what the nodes of a job tell each other through a control store).
"""
