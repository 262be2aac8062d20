"""``rdzv-run``: from the command line to the agent, its workers and the exit code.

Begin with ``preparation`` (the steps before a start), ``launch`` (one launch) and ``agent.decisions`` (the agent's
state machine).
"""
