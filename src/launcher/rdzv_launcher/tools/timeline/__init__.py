"""``rdzv timeline``: what the agents of a job have written, as one: what happened when, and what it cost."""
