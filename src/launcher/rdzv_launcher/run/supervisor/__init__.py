"""The supervisor: one process beside the agent that is the parent of all workers, so that nothing stays behind.

Begin with ``supervisor`` (the agent's side) and ``supervisor_process`` (the process). Nothing here imports torch; code
that runs in a template, or between fork and exec, imports nothing of this project but its neighbours and
`rdzv_plugins.system`.
"""
