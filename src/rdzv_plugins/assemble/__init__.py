"""The way from a backend's name and a request to the handler that the agent is given.

Begin with ``create`` (from a name to a handler) and ``rendezvous`` (that handler, with the hooks of plug-ins around
it). What a plug-in returns or raises is checked at the border, and told with its name.
"""
