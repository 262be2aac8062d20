"""``rdzv logs``: which log file belongs to which worker, how that worker ended, and what it wrote last."""
