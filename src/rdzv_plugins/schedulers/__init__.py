"""Plug-ins that ship with us: what schedulers and launchers tell a process through variables, so that no flag has to.

Each module is a plug-in of its own, with the name of its entry point, and is found and switched off like any other. It
reads variables, and only those if they suffice; what to do with them is decided in one place, ``facts.hook_of``.

``slurm`` shows what such a plug-in is; it is made of ``facts``.
"""
