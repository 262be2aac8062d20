"""``rdzv bench launch``: how long until the workers speak, and what the agents cost."""
