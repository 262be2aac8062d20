"""Failures of services, of the network and of nodes: parts of theme ``failure``."""
