"""From the name of a backend and a request to the handler that torch's agent is given."""
