"""The elastic rendezvous over any coordination backend: a node's side (``handler``), and what leads (``leading``)."""
