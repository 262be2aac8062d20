"""A launch from Python: ``elastic_launch(LaunchConfig(...))(function, *arguments)`` with torch's names, without torch.

Begin with ``launching``. The launch runs in a process of its own, ``agent_process``: nothing of it happens in the
caller's. What users import is in ``rdzv_launcher`` itself.
"""
