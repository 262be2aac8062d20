"""torch's dynamic rendezvous on any state backend, with a fresh store every round and ends that are announced.

Begin with ``handler``; all keys of our own are in ``options``.
"""
