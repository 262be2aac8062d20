"""Elastic rendezvous engines. Today: torch's dynamic rendezvous, on any state backend."""
