"""Elastic rendezvous: our own, over any coordination backend (``handler``), and torch's, over any state backend."""
