"""Whether a job hangs, and because of which worker. From below: ``signs``, ``standstill``, ``verdict``, ``watch``."""
