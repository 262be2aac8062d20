"""What all rendezvous engines share: ends, failures, errors, settings, and the workers' stores.

Begin with ``ends`` (failures and outcomes as JSON, as the error of a node that hears of one, and what the nodes of a
job tell each other through a control store) and ``worker_stores`` (one of either kind, each round).
"""
