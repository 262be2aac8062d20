"""The agent: what it decides, what agents of a round tell each other, and the loop around both. It needs no torch.

Begin with ``events``, ``steps`` and ``decisions``, which is what an agent does and when; ``loop`` takes the steps,
``node_workers`` are the workers as the loop has them, and ``fence`` stands around these.
"""
