"""The tests that a node runs on itself before a round, with --preflight, whatever the backend."""
