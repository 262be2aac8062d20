"""``rdzv-run``, the launcher, and the ``rdzv`` tools around it."""
