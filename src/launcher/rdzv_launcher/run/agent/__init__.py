"""The agent: what it decides, what agents of a round tell each other, and the loop around both. It needs no torch."""
