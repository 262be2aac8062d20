"""The fence around a node's workers: with the process beside the agent, it ends what the agent leaves behind."""
