"""Whether a job hangs, and because of which worker. From below: ``standstill``, ``verdict``, ``watch``."""
