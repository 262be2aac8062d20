"""What the leading node decides: the state machine of members and rounds, and what runs it."""
