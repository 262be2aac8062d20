"""Whether a job hangs, and because of which worker.

Begin with ``signs`` (what the kernel counts of a worker), ``standstill`` (does it make progress?) and ``verdict`` (does
the job hang, and who is different?). ``watch`` looks, and asks the other nodes.
"""
