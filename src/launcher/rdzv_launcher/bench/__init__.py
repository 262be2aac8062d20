"""Benchmarks: every figure beside its reference, from the same run.

Begin with ``points`` (what a result is, the order of a comparison, and when a ratio is refused) and ``results``
(manifest, JSON lines, the table; ``page`` has the charts). Each benchmark is a file: ``rendezvous``, ``launch``,
``faults``, ``store`` with its workloads ``start_of_job`` and ``transport``. All flags are in ``arguments``, all child
processes in ``children``.
"""
