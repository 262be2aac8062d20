"""From the name of a backend and a request to the handler that the agent is given."""
