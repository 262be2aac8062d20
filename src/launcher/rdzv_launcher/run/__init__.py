"""``rdzv-run``: from the command line to the agent, its workers and the exit code.

In come arguments and variables; out come workers with their environment, streams and log files, and an exit code. Read
``preparation`` (the steps before a start, which ``--check`` takes, too), ``launch`` (one launch) and
``agent.state_machine``. The main thread decides; other threads only fill its inbox. Nothing here imports torch unless
a flag, a variable or a plug-in asks for it, and what most launches do not need is imported by those that do.
"""
