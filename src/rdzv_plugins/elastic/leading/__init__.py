"""What the node that leads decides: the state machine of members and rounds, and who runs it."""
