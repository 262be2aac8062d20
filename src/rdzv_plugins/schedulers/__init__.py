"""Plug-ins that ship with us: what schedulers and launchers tell a process by variables, so that no flag has to.

Each module is a plug-in of its own, with the name of its entry point, found and switched off like a stranger's. It
reads variables, and nothing but them where that is enough; what to do with them is decided in one place, ``resolve``.
"""
