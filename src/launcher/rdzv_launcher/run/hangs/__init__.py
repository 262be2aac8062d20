"""Whether a job hangs, and by whom."""
