"""Whether a job hangs, and because of which worker. From below: ``verdict``, ``watch``."""
