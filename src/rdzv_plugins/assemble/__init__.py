"""The way from a backend's name and a request to the handler that the agent is given."""
