"""``rdzv-run``: from the command line to torch's agent, its workers and the exit code."""
