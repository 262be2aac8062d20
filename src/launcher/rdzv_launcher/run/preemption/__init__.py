"""The notice before preemption: workers of all nodes are told, agree on a step, and have time to save it."""
