"""A node's part in a trial: it measures its way to others, and lets others measure theirs to it."""
