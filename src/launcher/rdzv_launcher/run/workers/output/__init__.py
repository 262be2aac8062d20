"""Where the workers' output goes: log directories as torchrun lays them out, and what is shown of them meanwhile.

Begin with ``log_files`` (torchrun's layout) and ``output``. What is shown on the screen is imported when something is.
"""
