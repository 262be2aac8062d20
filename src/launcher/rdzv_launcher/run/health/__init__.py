"""Tells over HTTP whether this agent lives and its workers work, for those who watch processes (kubelet, say)."""
