"""What a node tests of itself before a round, with --preflight: whatever the backend is."""
