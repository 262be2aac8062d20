"""The elastic rendezvous over any coordination backend: a node's side (``handler``) and the leader's (``leading``)."""
