"""Charts of a result: which there are, how they look, and their files."""
