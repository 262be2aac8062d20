"""The elastic rendezvous over any ``CoordinationBackend``: a node's side; in ``coordinator`` what that decides.

Comes in: a backend, the ``Request``, options. Goes out: ``ElasticHandler``, which an agent asks for its rounds.
Begin with ``keys`` (all that nodes tell each other), ``join`` (how a node gets into a round),
``coordinator.state_machine`` and ``round_store``. ``node_session`` has what a node has been told (``WatchCache``) and
its sessions (``Registration``); ``current_round`` its round, and whether a node of it was lost; ``election`` who
coordinates; ``failures`` whether a process is gone; ``failover`` is the backend of several endpoints.
Threads: the agent's main one joins and leaves; those of the backend bring news, return at once, and leave what takes
time to ``BackgroundTasks``. Each write carries its round: a late one changes nothing.
"""
