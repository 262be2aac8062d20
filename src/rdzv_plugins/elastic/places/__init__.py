"""Several endpoints: which of them serves, and how a node moves from one to another."""
