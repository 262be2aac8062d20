"""Fault: it cannot be loaded at all."""

raise RuntimeError("not today")
