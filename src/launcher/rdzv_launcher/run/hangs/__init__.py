"""Whether a job hangs (``--hang-timeout``), and because of which worker.

In come counts of the kernel, samples of places and the other nodes' answers; out comes a ``Failure`` in place of one by
exit code. ``verdict`` judges without I/O and without a clock; ``watch`` looks and asks, on one thread. A job hangs only
if all nodes of the round say so: a needless restart is worse than a late one.
"""
