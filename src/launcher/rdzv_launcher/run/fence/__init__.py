"""The fence around a node's workers, and the process beside the agent that ends what the agent leaves behind."""
