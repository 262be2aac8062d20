"""The themes of the conformance suite by name: also for the command line, which does without pytest."""

THEMES = ("plugin", "backend", "rendezvous", "store", "failure", "launch", "scale")
"""Their order in the report."""
