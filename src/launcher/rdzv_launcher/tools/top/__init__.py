"""``rdzv top``: a job, or all jobs of an ``rdzv serve``, as they are now: on a screen, as text, as data."""
