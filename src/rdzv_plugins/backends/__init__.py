"""The backends that ship with the project: each is independent, and found like any third-party one."""
