"""``rdzv``, the tools around the launcher: a module or a folder for each sub-command."""
