"""The timeline of an agent: what has happened on this node, and when, one line of JSON for each."""
