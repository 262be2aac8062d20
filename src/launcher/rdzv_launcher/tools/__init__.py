"""``rdzv``, the tools around the launcher: one module or folder for each sub-command.

Begin with ``cli``. ``job`` finds a running job: the endpoint that serves, its service,
and what its nodes answer.
"""
