"""The timeline of an agent: what has happened on this node, and when, as one line of JSON per event."""
