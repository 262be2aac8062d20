"""Benchmarks: every figure beside its reference, from the same run.

Begin with ``points`` (what a result is, the order of a comparison, and when a ratio is refused) and ``results``
(manifest, JSON lines, the table; ``page`` has the charts). Each benchmark is a file: ``rendezvous`` with its processes
in ``nodes``, ``launch``, ``faults``, ``store``. Flags are in ``arguments``, child processes in ``children``, real jobs
in ``jobs``.
"""
