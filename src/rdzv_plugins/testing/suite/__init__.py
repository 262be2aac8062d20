"""What all themes build on, and what the pytest plug-in is made of: items, results, time limits."""

THEMES = ("plugin", "backend", "rendezvous", "store", "failure", "moves", "launch", "scale")
"""All themes, in the order of the report."""
