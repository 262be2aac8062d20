"""``rdzv bench faults``: how long a job needs to go on after something was killed or frozen."""
