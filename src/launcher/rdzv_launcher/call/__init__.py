"""A launch from Python: ``elastic_launch(LaunchConfig(...))(function, *arguments)`` with torch's names, without torch.

Begin with ``launching``. The launch runs in a separate process, ``agent_process``: none of it happens in the caller's
process. What users import is in ``rdzv_launcher`` itself.
"""
