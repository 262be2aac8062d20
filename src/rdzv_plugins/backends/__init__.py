"""The backends that ship with the project: each independent, found like a stranger's."""
