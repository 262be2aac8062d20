"""``rdzv doctor``: examines this machine, and its way to the place where a job's nodes meet."""
