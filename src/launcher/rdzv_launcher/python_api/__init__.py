"""A launch from Python: ``elastic_launch(LaunchConfig(...))(function, *arguments)`` with torch's names, without torch.

Begin with ``launching``. The launch runs in a separate process, ``agent``: none of it happens in the caller's
process. An agent makes its process a subreaper, freezes what the garbage collector knows, replaces standard error and
ignores signals while it leaves; a caller must find none of that, may call again from any thread, and may hold the
interpreter's lock for longer than a lease lasts. What users import is in ``rdzv_launcher`` itself.
"""
