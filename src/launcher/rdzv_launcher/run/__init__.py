"""``rdzv-run``: from the command line to the agent, its workers and the exit code."""
