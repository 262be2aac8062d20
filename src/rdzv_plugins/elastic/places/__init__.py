"""Several endpoints: which of them serves, and how a node goes from one to another."""
