"""torch's dynamic rendezvous on any state backend: a fresh store every round, and ends that are told."""
