"""The agent: what it decides, what the agents of a round tell each other, and the loop around both. It needs no
torch.
"""
