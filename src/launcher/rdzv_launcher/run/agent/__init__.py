"""The agent: what it decides, what agents of a round tell each other, and the loop around both. It needs no torch.

``events`` come in, ``steps`` go out: ``state_machine`` decides which. ``loop`` takes the steps on the main thread and
waits for nothing but its inbox and the rendezvous; ``node_workers`` are the workers as the loop has them, with a thread
that hears the supervisor, and ``fence`` stands around these, with a thread of its own. No worker is started while one
of the last generation lives, and the others are told of a failure before anything else is done about it.
"""
