"""``rdzv timeline``: merges what the agents of a job have written: what happened when, and what it cost."""
