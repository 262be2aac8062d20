"""The supervisor: one process beside the agent that is the parent of all workers, so that nothing stays behind.

It is told what to start, signal and kill, and says which workers have started and ended. Read ``supervisor`` (the
agent's side) and ``supervisor_process`` (the process, which has one thread and waits for nobody). Nothing here imports
torch; code that runs in a template, or between fork and exec, imports nothing of this project but its neighbours and
`rdzv_plugins.system`.
"""
