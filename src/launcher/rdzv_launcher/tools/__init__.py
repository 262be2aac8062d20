"""``rdzv``, the tools around the launcher: one module or folder for each sub-command."""
