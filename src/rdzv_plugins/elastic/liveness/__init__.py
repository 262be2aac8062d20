"""Is a node's process gone? What its own host's kernel says, and nothing less, proves it."""
