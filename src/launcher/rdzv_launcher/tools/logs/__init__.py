"""``rdzv logs``: which log file is of which worker, how that ended, and what it wrote last."""
